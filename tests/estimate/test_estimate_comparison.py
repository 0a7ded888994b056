"""Differences of variants, the parts of a step, and whether a predicted gain came, by hand."""

import math

import pytest

from hf_efficient.estimate.comparison import (
    ChainTimes,
    Difference,
    attribute,
    difference,
    judge_gain,
    rate_spread,
    saved_share,
    saved_spread,
    wants_another_round,
)


def test_a_difference_and_how_sure_it_is():
    # 1, 2, 3 and 0, 1, 5: median 1.5, medians of the rounds 2 and 1; six pairs lie between their ends with 96.9%
    found = difference([[5.0, 6.0, 7.0], [4.0, 5.0, 9.0]], [[4.0, 4.0, 4.0], [4.0, 4.0, 4.0]])
    assert found == Difference(seconds=1.5, low=0.0, high=5.0, rounds=2, is_sure=True)
    assert not found.is_clear
    found = difference([[2.0] * 6, [9.0] * 6], [[1.0] * 6])
    assert found == Difference(1.0, 1.0, 1.0, 1, True)
    # 20 pairs of +1 and 4 of -1: the pairs alone are sure of +1, the second round is not
    found = difference([[2.0] * 20, [0.0] * 4], [[1.0] * 20, [1.0] * 4])
    assert (found.seconds, found.low, found.high) == (1.0, -1.0, 1.0)
    assert not found.is_clear
    found = difference([[1.0] * 12], [[1.5] * 12])
    assert (found.seconds, found.high) == (-0.5, -0.5)
    assert not found.is_clear
    assert wants_another_round(found, whole_seconds=1.5)
    assert difference([[2.0] * 5], [[1.0] * 5]) == Difference(1.0, 1.0, 1.0, 1, False)
    assert not Difference(1.0, 1.0, 1.0, 1, False).is_clear


@pytest.mark.parametrize("base", [[], [[]]])
def test_without_a_common_step_there_is_no_difference_to_tell(base):
    assert difference([[1.0]], base) is None


@pytest.mark.parametrize(
    ("found", "again"),
    [
        (Difference(0.50, 0.48, 0.53, 1, True), False),  # large, clear, and known well
        (Difference(0.50, 0.30, 0.70, 1, True), True),  # large, and known to within 40% of a step only
        (Difference(0.05, 0.04, 0.06, 1, True), True),  # clear, but small: another process may differ by as much
        (Difference(0.05, 0.04, 0.06, 2, True), False),
        (Difference(0.01, -0.05, 0.06, 2, True), True),  # neither clear nor nothing
        (Difference(0.00, -0.02, 0.02, 2, True), False),  # nothing that matters
        (Difference(0.01, -0.05, 0.06, 3, True), False),  # three rounds are the most
    ],
)
def test_what_is_run_again(found, again):
    assert wants_another_round(found, whole_seconds=1.0) is again


T_7 = 2.364624  # Student's t, 97.5% with 7 degrees of freedom
ONE = frozenset({"one_process"})


def chain(left_out=ONE, **seconds) -> ChainTimes:
    """One round of six equal steps of each variant."""
    rounds = {name: [[each] * 6] for name, each in seconds.items()}
    return ChainTimes(rounds, left_out, [[False] * 6])


def medians(times: ChainTimes) -> dict[str, float | None]:
    return {part: None if one is None else one.seconds for part, one in attribute(times).differences.items()}


def test_the_chain_adds_up():
    times = chain(as_is=10.0, quiet=9.5, logged=9.75, held_batches=8.0, forward=3.0)
    assert medians(times) == {"logging": 0.25, "instrumentation": 0.5, "data": 1.5, "backward_optimizer": 5.0}
    found = attribute(times)
    assert (found.plain_seconds, found.forward_seconds) == (10.0, 3.0)
    times = chain(frozenset(), as_is=10.0, quiet=10.0, held_batches=8.0, one_process=7.0, forward=3.0)
    parts = medians(times)
    assert (parts["communication"], parts["backward_optimizer"]) == (1.0, 4.0)


def test_a_log_that_fell_into_a_step_is_not_our_recording():
    times = ChainTimes(
        {"as_is": [[10.0, 12.0] * 3], "quiet": [[9.0] * 6], "logged": [[11.0] * 6]}, ONE, [[False, True] * 3]
    )
    found = attribute(times)
    assert found.plain_seconds == 10.0
    assert found.differences["instrumentation"].seconds == 1.0


def test_parts_that_are_not_known():
    parts = medians(chain(as_is=10.0, quiet=9.0, logged=9.5, forward=3.0))
    assert parts == {"logging": 0.5, "instrumentation": 1.0, "data": None, "backward_optimizer": None}
    assert attribute(chain(as_is=10.0)).forward_seconds is None
    assert "logging" not in medians(chain(frozenset({"one_process", "logged"}), as_is=10.0, quiet=9.0))


ODD = [1.0] * 7 + [3.0]
TOKENS = [100] * 8


def test_what_is_saved():
    assert saved_share(0.03, 0.024) == pytest.approx(0.2)
    assert saved_share(0.03, 0.036) == pytest.approx(-0.2)
    assert saved_spread(0.4, 0.03, 0.04) == pytest.approx(0.03)


def test_the_spread_of_a_rate():
    assert rate_spread([1.0, 2.0] * 4, [100, 200] * 4, []) == pytest.approx(0, abs=1e-12)
    assert rate_spread(ODD, TOKENS, []) == pytest.approx(T_7 * 2 / 10)
    # Each block holds a fast and a slow step: 16 steps that alternate vary no more than 8 alike.
    assert rate_spread([1.0, 3.0] * 8, [100] * 16, []) == pytest.approx(0, abs=1e-12)
    assert rate_spread([1.0] * 14 + [3.0] * 2, [100] * 16, []) == pytest.approx(T_7 * 2 / 10)
    # 9 steps: blocks of one, and the last of two; S = 12, T = 900, r t = 4/3 of a single step.
    residuals = [1 - 4 / 3] * 7 + [5 - 8 / 3]
    variance = 8 / 7 * sum(one**2 for one in residuals)
    assert rate_spread([1.0] * 8 + [4.0], [100] * 9, []) == pytest.approx(T_7 * math.sqrt(variance) / 12)
    assert rate_spread(ODD, TOKENS, [[2.0, 4.0]]) == pytest.approx(T_7 * math.sqrt(8) / 16)
    assert rate_spread([1.0] * 8, TOKENS, [[5.0] * 4, [9.0]]) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("seconds", "tokens"), [([1.0] * 7, [1] * 7), ([1.0] * 8, [0] * 8), ([0.0] * 8, [1] * 8)])
def test_too_little_has_no_spread(seconds, tokens):
    assert rate_spread(seconds, tokens, []) is None


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
