from __future__ import annotations

import pytest

from hf_efficient.estimate.comparison import Difference, difference, wants_another_round


def test_pairs_are_of_the_same_step_of_the_same_round():
    # 1, 2, 3 and 0, 1, 5: median 1.5, medians of the rounds 2 and 1; six pairs lie between their ends with 96.9%
    found = difference([[5.0, 6.0, 7.0], [4.0, 5.0, 9.0]], [[4.0, 4.0, 4.0], [4.0, 4.0, 4.0]])
    assert found == Difference(seconds=1.5, low=0.0, high=5.0, rounds=2, tells=True)
    assert not found.is_clear


def test_a_round_that_only_one_has_is_left_out():
    found = difference([[2.0] * 6, [9.0] * 6], [[1.0] * 6])
    assert found == Difference(1.0, 1.0, 1.0, 1, True)


@pytest.mark.parametrize("base", [[], [[]]])
def test_without_a_common_step_there_is_no_difference_to_tell(base):
    assert difference([[1.0]], base) is None


def test_rounds_that_disagree_widen_what_their_pairs_say():
    # 20 pairs of +1 and 4 of -1: the pairs alone are sure of +1, the second round is not
    found = difference([[2.0] * 20, [0.0] * 4], [[1.0] * 20, [1.0] * 4])
    assert found is not None
    assert (found.seconds, found.low, found.high) == (1.0, -1.0, 1.0)
    assert not found.is_clear


def test_that_more_takes_less_is_not_clear():
    found = difference([[1.0] * 12], [[1.5] * 12])
    assert (found.seconds, found.high) == (-0.5, -0.5)
    assert not found.is_clear
    assert wants_another_round(found, whole_seconds=1.5)


def test_five_pairs_are_never_clear():
    assert difference([[2.0] * 5], [[1.0] * 5]) == Difference(1.0, 1.0, 1.0, 1, False)
    assert not Difference(1.0, 1.0, 1.0, 1, False).is_clear


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
