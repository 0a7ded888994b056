from __future__ import annotations

import pytest
from hand_clock import Hand, timeline_of

from hf_efficient.estimate.forecast import Limits, Schedule
from hf_efficient.recording.budget import BudgetWatch, Look, Passing
from hf_efficient.recording.live import LiveRun, RunningFigures
from hf_efficient.records.steps import StepRecord


@pytest.fixture
def clock():
    return Hand()


def run(clock, steps=6, wall=1.0, max_steps=1000):
    """A hundred seconds have been spent; so many steps took so long each."""
    live = LiveRun(timeline_of(clock), RunningFigures())
    live.schedule = Schedule(max_steps=max_steps)
    for number in range(1, steps + 1):
        live.figures.add(StepRecord(0, 0, number, None, wall, 0.0, {}, 1))
    return live


@pytest.mark.parametrize(
    ("seconds", "next_step"),
    [
        (1000, 16),  # ten seconds
        (111, 11),  # ten seconds of room behind the next step: half of them
        (102, 7),  # one step at least
    ],
)
def test_the_next_look_comes_when_it_is_worth_it(clock, seconds, next_step):
    look = BudgetWatch(Limits(hours=seconds / 3600)).look(run(clock, max_steps=7), 6, evaluates=False, saves=False)
    assert look == Look(None, None, next_step)


def test_tiny_steps_are_looked_at_at_least_every_thousandth(clock):
    look = BudgetWatch(Limits(hours=1)).look(run(clock, wall=0.001), 6, evaluates=False, saves=False)
    assert look.next_step == 1006


def test_there_must_be_room_for_what_is_due_a_step_and_a_checkpoint(clock):
    live = run(clock)
    live.figures.evaluations.add(3, 20.0)
    live.figures.saves.add(3, 5.0)

    def spent(seconds, **due):
        return (
            BudgetWatch(Limits(hours=seconds / 3600)).look(live, 6, **{"evaluates": False, "saves": False, **due}).spent
        )

    assert (spent(105.9), spent(106.1)) == ("hours", None)  # 1 + 5
    assert (spent(125.9, evaluates=True), spent(126.1, evaluates=True)) == ("hours", None)
    assert (spent(130.9, evaluates=True, saves=True), spent(131.1, evaluates=True, saves=True)) == ("hours", None)


def test_a_forecast_that_passes(clock):
    look = BudgetWatch(Limits(hours=0.1)).look(run(clock), 6, evaluates=False, saves=False)
    # 994 steps of 1 s are left, and 260 s.
    assert look.passing == Passing("hours", pytest.approx(1094 / 3600), 266, 994.0, False)


def test_a_pace_of_few_steps_is_no_forecast(clock):
    look = BudgetWatch(Limits(hours=0.1)).look(run(clock, steps=4), 4, evaluates=False, saves=False)
    assert look.passing is None


def test_without_a_limit_that_can_be_told_there_is_nothing_to_see(clock):
    assert BudgetWatch(Limits(usd=1.0)).look(run(clock), 6, evaluates=False, saves=False) == Look(None, None, 7)
