"""What is still to come of a run, and which limit comes first, by hand."""

import pytest

from hf_efficient.estimate.forecast import (
    Clearance,
    Forecast,
    Limits,
    Pace,
    Schedule,
    Spent,
    clearance,
    forecast,
    most_steps_within,
    recent_step_seconds,
)

RUN = Schedule(max_steps=120, evaluate_every=50, save_every=60)
PACE = Pace(step_seconds=2.0, evaluation_seconds=30.0, save_seconds=5.0)


@pytest.mark.parametrize(
    ("step", "left"), [(0, 3), (3, 3), (4, 2), (7, 2), (8, 1), (9, 1), (10, 0), (11, 0)]
)  # at 4, 8 and, once more, after the last of ten steps
def test_evaluations_still_to_come(step, left):
    assert Schedule(max_steps=10, evaluate_every=4).evaluations_left(step) == left
    assert Schedule(max_steps=10, save_every=4).saves_left(step) == left


def test_the_last_evaluation_and_the_first():
    assert Schedule(max_steps=8, evaluate_every=4).evaluations_left(0) == 2
    assert Schedule(max_steps=8, evaluate_every=4, evaluate_after=True).evaluations_left(8) == 1
    delayed = Schedule(max_steps=10, evaluate_every=2, evaluate_from=5)
    assert [delayed.evaluations_left(step) for step in (0, 5, 6, 9)] == [3, 3, 2, 1]  # 6, 8, 10
    assert Schedule(max_steps=10, evaluate_every=2, evaluate_from=11).evaluations_left(0) == 0
    assert Schedule(max_steps=9, evaluate_every=4, evaluate_from=9).evaluations_left(0) == 1  # after the last alone
    assert (Schedule(max_steps=10).evaluations_left(0), Schedule(max_steps=10).saves_left(0)) == (0, 0)


def test_the_rest_of_a_run():
    assert forecast(RUN, 40, PACE) == Forecast(80 * 2 + 3 * 30 + 2 * 5, lower_bound=False)
    assert forecast(RUN, 120, PACE) == Forecast(0.0, lower_bound=False)
    assert forecast(RUN, 40, Pace()) is None
    assert forecast(RUN, 40, Pace(step_seconds=2.0, save_seconds=5.0)) == Forecast(170.0, lower_bound=True)
    assert forecast(RUN, 40, Pace(step_seconds=2.0, evaluation_seconds=30.0)) == Forecast(250.0, lower_bound=True)
    assert forecast(Schedule(max_steps=50), 40, Pace(step_seconds=2.0)) == Forecast(20.0, lower_bound=False)
    best = Schedule(max_steps=50, evaluate_every=10, save_best=True)
    assert forecast(best, 40, PACE) == Forecast(50.0, lower_bound=True)


def test_the_steps_that_fit_and_the_time_of_one():
    assert most_steps_within(100.0, RUN, 40, PACE) == 57
    assert most_steps_within(99.0, RUN, 40, PACE) == 57
    assert most_steps_within(260.0, RUN, 40, PACE) == 120
    assert most_steps_within(1000.0, RUN, 40, PACE) == 120
    assert most_steps_within(10.0, RUN, 40, PACE) == 40
    assert most_steps_within(100.0, RUN, 40, Pace()) is None
    assert recent_step_seconds([]) is None
    assert recent_step_seconds([3.0]) == 3.0
    assert recent_step_seconds([1.0, 1.0, 1.0, 1.0, 96.0]) == pytest.approx(2.8)  # one stall
    assert recent_step_seconds([1.0, 1.0, 1.0, 6.0]) == pytest.approx(2.25)  # every fourth step does more


def test_the_limit_that_comes_first():
    limits, spent = Limits(usd=2.0, hours=1.0), Spent(1800.0, 0.5)
    assert clearance(limits, spent, 1.0) == Clearance("hours", 1800.0)
    assert clearance(limits, spent, 4.0) == Clearance("usd", 1350.0)
    # 0.4 kWh are left, at 800 W half an hour.
    assert clearance(Limits(kwh=1.0), Spent(60.0, None, 0.6), watts=800.0) == Clearance("kwh", pytest.approx(1800.0))
    assert clearance(Limits(hours=1.0), Spent(3700.0)) == Clearance("hours", pytest.approx(-100.0))
    assert clearance(Limits(usd=1.0), Spent(3700.0, 2.0), None) == Clearance("usd", 0.0)
    assert clearance(Limits(usd=1.0), Spent(3700.0, None)) is None
    assert clearance(Limits(usd=1.0), Spent(3700.0, 0.0), 0.0) is None
    assert clearance(Limits(kwh=1.0), Spent(3700.0, None, 0.5), watts=None) is None
    assert clearance(Limits(usd=1.0, hours=2.0), Spent(3600.0, None)) == Clearance("hours", 3600.0)
    spent = Spent(1800.0, 0.5, 0.25)
    assert [spent.of(name) for name in ("usd", "hours", "kwh")] == [0.5, 0.5, 0.25]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_is_a_positive_number(value):
    with pytest.raises(ValueError, match="write a positive number"):
        Limits(usd=value)
    with pytest.raises(ValueError, match="without a limit"):
        Limits()
