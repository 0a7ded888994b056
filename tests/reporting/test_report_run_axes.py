"""Where steps, times and evaluations lie on the axes."""

from __future__ import annotations

from hand_made import NO_STEPS, steps

from hf_efficient.records.amounts import Evaluation
from hf_efficient.reporting.plots.figure import evaluation_places, step_axis, time_axis


def evaluations(*after):
    return [Evaluation(step, {}) for step in after]


def test_single_steps_lie_on_their_numbers():
    where = step_axis(steps())
    assert (where.starts, where.ends) == ([0.5, 1.5, 2.5, 3.5], [1.5, 2.5, 3.5, 4.5])
    assert where.centers == [1.0, 2.0, 3.0, 4.0]
    assert (where.title, where.hover, where.resumed_at) == ("optimizer step", "step %{x:,.0f}", [])
    assert where.layout()["range"] == [0.5, 4.5]


def test_buckets_are_as_wide_as_their_steps():
    where = step_axis(steps(steps=[8, 8, 3]))
    assert where.ends == [8.5, 16.5, 19.5]
    assert where.widths == [8, 8, 3]
    assert where.centers == [4.5, 12.5, 18.0]
    assert where.hover == "about step %{x:,.0f}, 8 together"


def test_steps_done_again_follow_each_other():
    held = steps(segment=[0, 0, 1, 1], first_step=[1, 2, 2, 3], last_step=[1, 2, 2, 3])
    where = step_axis(held)
    assert (where.starts, where.resumed_at) == ([0.5, 1.5, 2.5, 3.5], [2.5])
    assert where.title == "optimizer steps in the order recorded"
    assert [line["x0"] for line in where.resumptions()] == [2.5]
    # Before the first step, after step 2 of the first start, after step 2 of the second, after step 3.
    assert evaluation_places(evaluations(0, 2, 3), held, where) == [0.5, 2.5, 4.5]
    assert evaluation_places(evaluations(3, 1), held, where) == [4.5, 1.5]


def test_a_run_that_went_on_elsewhere_begins_at_its_own_step():
    where = step_axis(steps(first_step=[101, 102, 103, 104], last_step=[101, 102, 103, 104]))
    assert where.layout()["range"] == [100.5, 104.5]


def test_an_evaluation_lies_after_its_step():
    held = steps(steps=[8, 8, 3])
    assert evaluation_places(evaluations(0, 8, 10, 19, 40), held, step_axis(held)) == [0.5, 8.5, 10.5, 19.5, 40.5]
    assert evaluation_places(evaluations(0, 5), NO_STEPS, step_axis(NO_STEPS)) == [0.5, 5.5]


def test_time_in_the_unit_that_fits():
    assert [time_axis(wall).unit for wall in (0, 300, 301, 18_000, 18_001)] == ["s", "s", "min", "min", "h"]
    where = time_axis(7200.0)
    assert (where.end, where.places([0.0, 90.0])) == (120.0, [0.0, 1.5])
    assert where.layout()["title"]["text"] == "time since the start, min"
