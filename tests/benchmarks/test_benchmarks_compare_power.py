"""What the benchmark of comparisons draws from a recording, and that it sees claims."""

import compare_power
import numpy as np
import pytest

from hf_efficient.estimate.significance import Steps


@pytest.fixture
def recorded():
    generator = np.random.default_rng(0)
    tokens = generator.integers(50, 150, 80).astype(float)
    return Steps((1 + 0.01 * tokens) * np.exp(generator.normal(0, 0.01, 80)), tokens)


def test_blocks_of_neighbours_are_drawn():
    found = compare_power.places(1000, 80, np.random.default_rng(0))
    assert set(found) == set(range(80))
    together = np.mean(np.diff(found) % 80 == 1)
    assert 0.93 < together < 0.98  # 24 of 25


def test_pairs_have_the_same_batches_and_the_recorded_noise(recorded):
    line = compare_power._line(recorded)
    assert line == pytest.approx((1, 0.01), rel=0.05)
    before, after = compare_power._in_pairs(recorded, line)(50, 0.5, 1)
    assert (before.per == after.per).all()
    assert np.median(after.seconds / before.seconds) == pytest.approx(1.5, rel=0.01)


def test_a_claim_is_seen_and_its_absence(recorded, monkeypatch):
    monkeypatch.setattr(compare_power, "DIFFERENCES", {200: (0.0, 0.1)})
    rows = [row for method in compare_power.METHODS for row in compare_power.rows_of("a", recorded, 8, method)]
    assert [row["method"] for row in rows] == ["paired_steps", "tune", "steps"]
    for row in rows:
        assert row["claims"]["0.0"] <= 0.25
        assert row["claims"]["0.1"] == 1.0
