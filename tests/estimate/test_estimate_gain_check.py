"""Predicted and achieved gains, worked out by hand."""

from __future__ import annotations

import math

import pytest

from hf_efficient.estimate.comparison import (
    is_as_predicted,
    judge_gain,
    rate_spread,
    saved_share,
    saved_spread,
    seconds_per_token,
)

ODD = [1.0] * 7 + [3.0]
TOKENS = [100] * 8


def test_the_time_per_token_and_what_is_saved_of_it():
    assert seconds_per_token(12.0, 400) == 0.03
    assert saved_share(0.03, 0.024) == pytest.approx(0.2)
    assert saved_share(0.03, 0.036) == pytest.approx(-0.2)


def test_steps_that_take_what_their_tokens_take_have_no_spread():
    assert rate_spread([1.0, 2.0] * 4, [100, 200] * 4, []) == pytest.approx(0, abs=1e-12)


def test_one_slow_block_of_eight():
    assert rate_spread(ODD, TOKENS, []) == pytest.approx(2.365 * 2 / 10)


def test_neighbours_make_a_block():
    # Each block holds a fast and a slow step: 16 steps that alternate vary no more than 8 alike.
    assert rate_spread([1.0, 3.0] * 8, [100] * 16, []) == pytest.approx(0, abs=1e-12)
    assert rate_spread([1.0] * 14 + [3.0] * 2, [100] * 16, []) == pytest.approx(2.365 * 2 / 10)


def test_all_steps_are_in_a_block():
    # 9 steps: blocks of one, and the last of two; S = 12, T = 900, r t = 4/3 of a single step.
    residuals = [1 - 4 / 3] * 7 + [5 - 8 / 3]
    variance = 8 / 7 * sum(one**2 for one in residuals)
    assert rate_spread([1.0] * 8 + [4.0], [100] * 9, []) == pytest.approx(2.365 * math.sqrt(variance) / 12)


def test_pauses_vary_in_their_length_alone():
    assert rate_spread(ODD, TOKENS, [[2.0, 4.0]]) == pytest.approx(2.365 * math.sqrt(8) / 16)
    assert rate_spread([1.0] * 8, TOKENS, [[5.0] * 4, [9.0]]) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("seconds", "tokens"), [([1.0] * 7, [1] * 7), ([1.0] * 8, [0] * 8), ([0.0] * 8, [1] * 8)])
def test_too_little_has_no_spread(seconds, tokens):
    assert rate_spread(seconds, tokens, []) is None


def test_the_spread_of_what_is_saved():
    assert saved_spread(0.4, 0.03, 0.04) == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("achieved", "within"), [(0.149, False), (0.15, True), (0.3, True), (0.6, True), (0.601, False), (-0.2, False)]
)
def test_half_to_twice_is_as_predicted(achieved, within):
    assert is_as_predicted(0.3, achieved) is within


@pytest.mark.parametrize(
    ("achieved", "spread", "outcome"),
    [
        (0.2, 0.05, "as_predicted"),
        (0.14, 0.05, "below_half"),
        (0.61, 0.05, "above_twice"),
        (0.02, 0.05, "no_difference"),
        (-0.02, 0.05, "no_difference"),
        (0.2, 0.25, "hidden"),  # 0 and 0.3 both lie within 0.2 +- 0.25
        (0.02, 0.29, "hidden"),
        (0.02, 0.27, "no_difference"),
        (-0.1, 0.05, "worse"),
        (0.0, 0.0, "no_difference"),
    ],
)
def test_an_achieved_gain_of_three_tenths_predicted(achieved, spread, outcome):
    assert judge_gain(0.3, achieved, spread) == outcome
