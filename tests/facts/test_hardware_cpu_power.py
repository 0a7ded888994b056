from __future__ import annotations

import pytest

from hf_efficient.facts.prices import cpu_power
from hf_efficient.facts.tables import rows


def test_the_mean_of_the_providers():
    """(0.74 + 0.71 + 0.78) / 3 and (3.5 + 4.26 + 3.76) / 3."""
    held = cpu_power()
    assert (held.min_watts, held.max_watts) == (pytest.approx(0.743333, abs=1e-6), pytest.approx(3.84))
    assert held.source == "Cloud Carbon Footprint, mean of aws, gcp, azure, read 2026-11-20"


def test_every_row_says_where_it_is_from():
    for row in rows("cpu_power"):
        assert 0 < row["min_watts"] < row["max_watts"]
        assert row["source"].startswith("https://www.cloudcarbonfootprint.org/docs/methodology")
        assert row["read_at"].endswith("microsite/docs/Methodology.md")
