"""What a run has spent, what it will have spent, and the figures of its logs, by a clock that is set by hand."""

from __future__ import annotations

import pytest
from hand_clock import SECOND, Hand

from hf_efficient.estimate.forecast import Pace, Schedule, Spent
from hf_efficient.recording.live import Earlier, LiveRun, Outlook, RunningFigures, log_figures
from hf_efficient.records.steps import StepMemory, StepRecord, StepWork, TokenCounts


@pytest.fixture
def clock():
    return Hand()


class Run:
    """Of a process that has lived for 100 s."""

    system = None

    def __init__(self, clock):
        self.clock, self.began, self.facts = clock, clock.at - 100 * SECOND, {}

    def state(self, topic, facts):
        self.facts[topic] = facts

    def now_seconds(self):
        return self.clock() / SECOND

    def lived_seconds(self):
        return (self.clock() - self.began) / SECOND


@pytest.fixture
def timeline(clock):
    return Run(clock)


class Meter:
    """In place of the sampler."""

    def __init__(self, read):
        self.read = read

    @property
    def energy_joules(self):
        return self.read()


def step(number, wall=2.0, **phases):
    work, memory = StepWork(8_000, 12_000), StepMemory(500, 700)
    tokens = TokenCounts(100, 80, 40)
    return StepRecord(0, 0, number, None, wall, 0.0, phases, 1, tokens, work=work, memory=memory)


def test_time_money_and_energy_so_far(timeline, clock):
    live = LiveRun(timeline, RunningFigures())
    assert live.spent() == Spent(100.0, None, None)
    timeline.state("price", {"price_usd_per_hour": 36.0})
    assert live.spent() == Spent(100.0, pytest.approx(1.0), None)
    timeline.system = Meter(lambda: 3_600_000.0)
    assert live.spent() == Spent(100.0, pytest.approx(1.0), pytest.approx(1.0))
    clock.wait(50)
    assert live.spent().wall_seconds == 150.0


def test_what_earlier_processes_spent_counts(timeline):
    timeline.state("price", {"price_usd_per_hour": 36.0})
    timeline.system = Meter(lambda: 3_600_000.0)
    live = LiveRun(timeline, RunningFigures(Earlier(wall_seconds=200.0, joules=7_200_000.0)))
    assert live.spent() == Spent(300.0, pytest.approx(3.0), pytest.approx(3.0))
    live.elsewhere_joules = 1_800_000.0  # other ranks
    assert live.spent().kwh == pytest.approx(3.5)
    cheaper = LiveRun(timeline, RunningFigures(Earlier(wall_seconds=200.0, cost_usd=0.25)))
    assert cheaper.spent().usd == pytest.approx(0.25 + 1.0)
    unknown = LiveRun(timeline, RunningFigures(Earlier(wall_seconds=200.0, joules=None)))
    assert unknown.spent().kwh is None


def test_the_outlook(timeline, clock):
    timeline.state("price", {"price_usd_per_hour": 36.0})
    timeline.system = Meter(lambda: 100.0 * (timeline.lived_seconds() - 100.0))  # 100 W from here on
    live = LiveRun(timeline, RunningFigures())
    assert live.outlook(1) is None  # nothing is scheduled
    live.schedule = Schedule(max_steps=10, evaluate_every=5)
    assert live.outlook(1) is None  # no step was recorded
    clock.wait(8)
    for number in (1, 2, 3, 4):
        live.figures.add(step(number))
    # 800 J in 8 s, 1200 J more in 12 s.
    assert live.outlook(4) == Outlook(12.0, Spent(120.0, pytest.approx(1.2), pytest.approx(0.002 / 3.6)), True)
    live.figures.evaluations.add(0, 30.0)
    assert live.outlook(4) == Outlook(72.0, Spent(180.0, pytest.approx(1.8), pytest.approx(0.008 / 3.6)), False)
    timeline.state("run", {"startup_seconds": 40.0})  # 4000 J more
    again = Outlook(112.0, Spent(220.0, pytest.approx(2.2), pytest.approx(0.012 / 3.6)), False)
    assert live.outlook(4, another_start=True) == again
    assert live.outlook(4).seconds_left == 72.0


def test_the_time_of_a_step_is_looked_at_once_a_second(timeline, clock):
    live = LiveRun(timeline, RunningFigures())
    live.figures.add(step(1, 2.0))
    assert live.pace().step_seconds == 2.0
    live.figures.add(step(2, 4.0))
    clock.wait(0.9)
    live.figures.saves.add(2, 5.0)
    assert live.pace() == Pace(2.0, None, 5.0)
    clock.wait(0.1)
    assert live.pace() == Pace(4.0, None, 5.0)  # one of two is warm-up


def test_the_figures_of_a_log(timeline, clock):
    timeline.state("price", {"price_usd_per_hour": 36.0})
    timeline.state("work", {"peak_flops_per_second": 10_000.0})
    live = LiveRun(timeline, RunningFigures())
    live.schedule = Schedule(max_steps=6)
    for number, wall in ((1, 2.0), (2, 2.0), (3, 6.0), (4, 4.0)):
        evaluation = {"evaluation": 4.0} if number == 3 else {}
        live.figures.add(step(number, wall, data_wait=0.5, forward=1.0, **evaluation))
    clock.wait(14)
    found = log_figures(live.figures.take_window(None), live, live.outlook(4))
    assert found == {
        "efficiency/step_seconds_p50": 2.0,
        "efficiency/step_seconds_p95": pytest.approx(3.7),  # 2, 2, 2, 4: 2 + 0.85 * 2
        "efficiency/non_padding_tokens_per_second": 320 / 10.0,
        "efficiency/padding_share": pytest.approx(0.2),
        "efficiency/mfu": 32_000 / (10.0 * 10_000),
        "efficiency/hfu": 48_000 / (10.0 * 10_000),
        "efficiency/data_wait_share": 2.0 / 10.0,
        "efficiency/unattributed_share": 4.0 / 14.0,
        "efficiency/peak_allocated_bytes": 500.0,
        "efficiency/wall_seconds": 114.0,
        "efficiency/cost_usd": pytest.approx(1.14),
        "efficiency/forecast_wall_seconds": 114.0 + 2 * 3.0,  # the mean of steps 3 and 4, after two of warm-up
        "efficiency/forecast_cost_usd": pytest.approx(1.20),
    }
    live.world_size = 4
    live.figures.add(step(5, 2.0))
    again = log_figures(live.figures.take_window(None), live, None)
    assert again["efficiency/non_padding_tokens_per_second"] == 4 * 80 / 2.0
    assert "efficiency/forecast_wall_seconds" not in again


def test_what_is_not_known_is_not_logged(timeline):
    live = LiveRun(timeline, RunningFigures())
    assert log_figures(live.figures.take_window(None), live, None) == {"efficiency/wall_seconds": 100.0}
    bare = StepRecord(0, 0, 1, None, 2.0, 0.0, {"forward": 2.0}, 1)
    live.figures.add(bare)
    assert set(log_figures(live.figures.take_window(None), live, None)) == {
        "efficiency/step_seconds_p50",
        "efficiency/step_seconds_p95",
        "efficiency/data_wait_share",
        "efficiency/unattributed_share",
        "efficiency/wall_seconds",
    }


def test_energy_is_told_once_an_interval_was_measured(timeline):
    joules = [0.0]
    timeline.system = Meter(lambda: joules[0])
    live = LiveRun(timeline, RunningFigures())
    assert "efficiency/energy_kwh" not in log_figures(live.figures.take_window(None), live, None)
    joules[0] = 1800.0
    assert log_figures(live.figures.take_window(None), live, None)["efficiency/energy_kwh"] == 1800.0 / 3.6e6
