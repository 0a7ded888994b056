"""Percentiles, medians, spreads and growth, by hand."""

import numpy
import numpy as np
import pytest

from hf_efficient.estimate.statistics import (
    Spread,
    median_spread,
    percentile,
    steady_growth,
    sum_if_known,
    warm_up_count,
)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([1.0, 2.0, 4.0, 8.0], 0.95, 7.4),
        ([1.0, 2.0, 4.0, 8.0], 0.5, 3.0),
        ([1.0, 2.0, 4.0, 8.0], 0.0, 1.0),
        ([1.0, 2.0, 4.0, 8.0], 1.0, 8.0),
        ([1.0, 9.0], 1, 9.0),
        ([3.0], 0.99, 3.0),
        ([10.0, 20.0, 30.0], 0.5, 20.0),
    ],
)
def test_percentiles_by_hand(values, share, expected):
    assert percentile(values, share) == pytest.approx(expected, abs=1e-12)
    assert percentile(numpy.array(values), share) == pytest.approx(expected, abs=1e-12)


def test_warm_up_and_nothing():
    assert percentile([], 0.5) is None
    assert [warm_up_count(steps) for steps in (0, 1, 2, 3, 4, 5, 6, 7, 1000)] == [0, 0, 1, 1, 2, 2, 3, 3, 3]


def test_the_interval_of_a_median():
    # 1 - 2 * (C(10, 0) + C(10, 1)) / 1024 = 1 - 22 / 1024
    spread = median_spread([10, 1, 9, 2, 8, 3, 7, 4, 6, 5])
    assert spread == Spread(median=5.5, low=2, high=9, confidence=1 - 22 / 1024, pairs=10)
    spread = median_spread([5, 4, 3, 2, 1])
    assert (spread.low, spread.high, spread.is_sure) == (1, 5, False)
    assert median_spread([6, 5, 4, 3, 2, 1]) == Spread(3.5, 1, 6, 1 - 2 / 64, 6)  # the fewest that reach 95%
    # 1 - 2 * (1 + 10 + 45) / 1024 = 0.890625
    assert median_spread(list(range(1, 11)), confidence=0.89) == Spread(5.5, 3, 8, 0.890625, 10)


STEPS = np.arange(30, dtype=float)


def test_what_is_growth():
    assert steady_growth(np.arange(6.0), 2 * np.arange(6.0)) == pytest.approx(2)
    values = 2 * STEPS
    values[7] = 1000
    assert steady_growth(STEPS, values) == pytest.approx(2)
    noise = np.random.default_rng(0).normal(size=300)
    places = np.arange(300.0)
    assert steady_growth(places, places + 10 * noise) == pytest.approx(1, abs=0.1)
    values = 2 * STEPS
    values[::2] = np.nan
    assert steady_growth(STEPS, values) == pytest.approx(2)
    assert steady_growth(STEPS[:5], STEPS[:5]) is None


def test_what_is_no_growth():
    for at in (3, 10, 15, 25):
        assert steady_growth(STEPS, np.where(at <= STEPS, 100.0, 0.0)) is None
    # A cache that fills up.
    assert steady_growth(STEPS, np.minimum(STEPS, 18)) is None
    noise = np.random.default_rng(0).normal(size=30)
    assert steady_growth(STEPS, noise) is None
    assert steady_growth(STEPS, -STEPS) is None
    assert steady_growth(STEPS, np.ones(30)) is None


@pytest.mark.parametrize(("parts", "total"), [([1, 2], 3), ([0], 0), ([1, None], None), ([None], None), ([], None)])
def test_a_part_that_is_not_known_makes_the_sum_unknown(parts, total):
    assert sum_if_known(parts) == total
