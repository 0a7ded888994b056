"""Percentiles, medians, spreads and growth, by hand."""

from __future__ import annotations

import random

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


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.95, 0.99, 0.999, 1.0])
def test_percentiles_are_numpy_s_default(share):
    values = sorted(random.Random(0).lognormvariate(0, 1) for _ in range(997))
    assert percentile(values, share) == pytest.approx(float(numpy.percentile(values, 100 * share)), rel=1e-12)


def test_nothing_has_no_percentile():
    assert percentile([], 0.5) is None


def test_warm_up():
    assert [warm_up_count(steps) for steps in (0, 1, 2, 3, 4, 5, 6, 7, 1000)] == [0, 0, 1, 1, 2, 2, 3, 3, 3]


def test_the_interval_of_ten_runs_from_the_second_to_the_ninth():
    # 1 - 2 * (C(10, 0) + C(10, 1)) / 1024 = 1 - 22 / 1024
    spread = median_spread([10, 1, 9, 2, 8, 3, 7, 4, 6, 5])
    assert spread == Spread(median=5.5, low=2, high=9, confidence=1 - 22 / 1024, pairs=10)


def test_five_pairs_reach_no_95_percent():
    spread = median_spread([5, 4, 3, 2, 1])
    assert (spread.low, spread.high, spread.tells) == (1, 5, False)
    assert spread.holds(5)
    assert not spread.holds(5.1)


STEPS = np.arange(30, dtype=float)


def test_a_line_has_its_slope_and_an_outlier_does_not_move_it():
    assert steady_growth(np.arange(6.0), 2 * np.arange(6.0)) == pytest.approx(2)
    values = 2 * STEPS
    values[7] = 1000
    assert steady_growth(STEPS, values) == pytest.approx(2)


def test_a_jump_is_no_growth():
    for at in (3, 10, 15, 25):
        assert steady_growth(STEPS, np.where(at <= STEPS, 100.0, 0.0)) is None


def test_a_ramp_that_ends_is_no_growth():
    """A cache that fills up."""
    assert steady_growth(STEPS, np.minimum(STEPS, 18)) is None


def test_noise_falling_values_and_rest_are_no_growth():
    noise = np.random.default_rng(0).normal(size=30)
    assert steady_growth(STEPS, noise) is None
    assert steady_growth(STEPS, -STEPS) is None
    assert steady_growth(STEPS, np.ones(30)) is None


def test_growth_under_noise_of_changing_batches_is_found():
    noise = np.random.default_rng(0).normal(size=300)
    places = np.arange(300.0)
    assert steady_growth(places, places + 10 * noise) == pytest.approx(1, abs=0.1)


def test_what_is_not_known_is_left_out_and_a_few_values_tell_nothing():
    values = 2 * STEPS
    values[::2] = np.nan
    assert steady_growth(STEPS, values) == pytest.approx(2)
    assert steady_growth(STEPS[:5], STEPS[:5]) is None


@pytest.mark.parametrize(("parts", "total"), [([1, 2], 3), ([0], 0), ([1, None], None), ([None], None), ([], None)])
def test_a_part_that_is_not_known_makes_the_sum_unknown(parts, total):
    assert sum_if_known(parts) == total
