from __future__ import annotations

import pytest

from hf_efficient.estimate.statistics import Spread, median_spread


def test_the_interval_of_ten_runs_from_the_second_to_the_ninth():
    # 1 - 2 * (C(10, 0) + C(10, 1)) / 1024 = 1 - 22 / 1024
    spread = median_spread([10, 1, 9, 2, 8, 3, 7, 4, 6, 5])
    assert spread == Spread(median=5.5, low=2, high=9, confidence=1 - 22 / 1024, pairs=10)


def test_five_pairs_reach_no_95_percent():
    spread = median_spread([5, 4, 3, 2, 1])
    assert (spread.low, spread.high, spread.tells) == (1, 5, False)
    assert spread.holds(5)
    assert not spread.holds(5.1)


def test_nothing_has_no_median():
    with pytest.raises(ValueError, match="no pairs"):
        median_spread([])
