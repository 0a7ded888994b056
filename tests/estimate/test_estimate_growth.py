"""Steady growth, told from jumps, noise and rest."""

from __future__ import annotations

import numpy as np
import pytest

from hf_efficient.estimate.statistics import steady_growth

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
