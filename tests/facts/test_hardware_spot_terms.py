"""What is taken for granted of spot machines."""

from __future__ import annotations

import datetime

from hf_efficient.facts.prices import SpotTerms, spot_terms
from hf_efficient.facts.tables import rows


def test_the_tables_figures_say_whose_they_are():
    found = spot_terms()
    assert (found.hours_between_preemptions, found.restart_seconds, found.write_mb_per_second) == (2.1, 300, 131)
    assert found.assumed == (
        "a machine is taken away every 2.1 h on average (AWS V100s in April 2023)",
        "300 s until the next one trains (assumed, not measured)",
        "checkpoints are written at 131 MB/s (an AWS gp3 volume)",
    )


def test_what_the_user_says_is_not_assumed():
    assert spot_terms(6.0, 0.0, 1000.0) == SpotTerms(6.0, 0.0, 1000.0, ())
    assert (spot_terms().write_of, spot_terms(write_mb_per_second=1.0).write_of) == ("an AWS gp3 volume", None)
    assert spot_terms(hours_between_preemptions=6.0).assumed == spot_terms().assumed[1:]


def test_every_row_is_whole():
    for row in rows("spot"):
        assert row["value"] > 0
        assert row["source"].startswith("https://") or row["figure"] == "restart"
        assert row["note"]
        assert isinstance(row["date"], datetime.date)
