"""The same examples before and after."""

import pytest

from hf_efficient.estimate.statistics import mcnemar, paired_test


@pytest.mark.parametrize(
    ("worse", "better", "p_value"), [(1, 5, 14 / 64), (5, 1, 14 / 64), (0, 8, 2 / 256), (3, 3, 1.0), (0, 0, 1.0)]
)
def test_mcnemar_by_hand(worse, better, p_value):
    assert mcnemar(worse, better) == pytest.approx(p_value)


def test_answers_that_are_right_or_wrong():
    found = paired_test([0, 0, 0, 0, 0, 1, 1, 0], [1, 1, 1, 1, 1, 0, 1, 0])
    assert found.difference == 0.5
    assert (found.p_value, found.method) == (pytest.approx(14 / 64), "McNemar, exact")
    assert found.low < 0.5 < found.high


def test_scores_that_are_numbers():
    shifted = paired_test([1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5], [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    assert (shifted.difference, shifted.low, shifted.high) == (0.5, 0.5, 0.5)
    assert shifted.p_value == pytest.approx(2 / 2**8, abs=0.003)  # all signs alike, or all turned
    same = paired_test([0.5, 0.7], [0.5, 0.7])
    assert (same.difference, same.p_value) == (0.0, 1.0)


def test_one_example_says_nothing():
    assert paired_test([1.0], [0.0]) is None
