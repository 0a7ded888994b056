from __future__ import annotations

import pytest

from hf_efficient.accounting.evaluations import few_evaluations
from hf_efficient.records.amounts import Evaluation


def evaluation(step, loss, **more):
    return Evaluation(step, {"loss": loss, **more})


def steps(found):
    return [one.step for one in found]


def test_few_are_kept_as_they_are():
    some = [evaluation(step, 1.0) for step in (1, 2, 3)]
    assert few_evaluations(some, 3) == some


def test_first_last_best_and_worst_are_kept():
    """Of ten the first, the last, step 4 (least) and step 7 (most); of 2, 3, 5, 6, 8, 9 one per third."""
    losses = [5.0, 4.0, 4.0, 1.0, 4.0, 4.0, 9.0, 4.0, 4.0, 3.0]
    some = [evaluation(step, loss) for step, loss in enumerate(losses, start=1)]
    assert steps(few_evaluations(some, 4)) == [1, 4, 7, 10]
    assert steps(few_evaluations(some, 7)) == [1, 3, 4, 6, 7, 9, 10]
    assert few_evaluations(some, 7)[2] == evaluation(4, 1.0)


@pytest.mark.parametrize("most", [2, 3, 5, 50, 99])
def test_never_more_than_asked_for_and_none_twice(most):
    some = [evaluation(step, float(step % 7), accuracy=float(step % 11)) for step in range(1, 101)]
    found = steps(few_evaluations(some, most))
    assert found == sorted(set(found))
    assert (len(found), found[0], found[-1]) == (most, 1, 100)


def test_a_metric_that_few_know():
    some = [evaluation(step, 1.0) for step in range(1, 30)]
    some[17] = evaluation(18, 1.0, answers=0.5)
    assert 18 in steps(few_evaluations(some, 3))


def test_a_figure_that_is_not_finite_is_no_extreme():
    some = [evaluation(step, None if step == 9 else float(step % 5), nothing=None) for step in range(1, 30)]
    assert steps(few_evaluations(some, 4)) == [1, 4, 5, 29]
