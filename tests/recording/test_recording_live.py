"""What a run has spent and will have spent, the figures of its logs, and its budget, by a clock that is set by hand."""

import json
import logging

import pytest
from hand_clock import SECOND, timeline_of

from hf_efficient.accounting.money import read_earlier
from hf_efficient.estimate.forecast import Earlier, Limits, Schedule, Spent
from hf_efficient.recording.budget import BudgetWatch, Look
from hf_efficient.recording.live import LiveRun, Outlook, RunningFigures, log_figures
from hf_efficient.records.steps import StepMemory, StepRecord, StepWork, TokenCounts


class Run:
    """Of a process that has lived for 100 s."""

    system = None

    def __init__(self, hand):
        self.hand, self.began, self.facts = hand, hand.at - 100 * SECOND, {}

    def state(self, topic, facts):
        self.facts[topic] = facts

    def now_seconds(self):
        return self.hand() / SECOND

    def lived_seconds(self):
        return (self.hand() - self.began) / SECOND


@pytest.fixture
def timeline(hand):
    return Run(hand)


class Meter:
    """In place of the sampler."""

    def __init__(self, read):
        self.read = read

    energy_joules = property(lambda self: self.read())


def step(number, wall=2.0, tokens=(100, 80, 40), flops=8_000, peak=500, **phases):
    work, memory = flops and StepWork(flops, flops * 3 // 2), peak and StepMemory(peak, 2 * peak)
    return StepRecord(0, 0, number, None, wall, 0.0, phases, 1, TokenCounts(*tokens), work=work, memory=memory)


def test_time_money_and_energy_so_far(timeline, hand):
    live = LiveRun(timeline, RunningFigures())
    assert live.spent() == Spent(100.0, None, None)
    timeline.state("price", {"price_usd_per_hour": 36.0})
    assert live.spent() == Spent(100.0, pytest.approx(1.0), None)
    timeline.system = Meter(lambda: 3_600_000.0)
    assert live.spent() == Spent(100.0, pytest.approx(1.0), pytest.approx(1.0))
    hand.wait(50)
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


def test_the_outlook(timeline, hand):
    timeline.state("price", {"price_usd_per_hour": 36.0})
    timeline.system = Meter(lambda: 100.0 * (timeline.lived_seconds() - 100.0))  # 100 W from here on
    live = LiveRun(timeline, RunningFigures())
    assert live.outlook(1) is None  # nothing is scheduled
    live.schedule = Schedule(max_steps=10, evaluate_every=5)
    assert live.outlook(1) is None  # no step was recorded
    hand.wait(8)
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


def test_the_figures_of_a_log(timeline, hand):
    timeline.state("price", {"price_usd_per_hour": 36.0})
    timeline.state("work", {"peak_flops_per_second": 10_000.0})
    live = LiveRun(timeline, RunningFigures())
    live.schedule = Schedule(max_steps=6)
    for number, wall in ((1, 2.0), (2, 2.0), (3, 6.0), (4, 4.0)):
        evaluation = {"evaluation": 4.0} if number == 3 else {}
        live.figures.add(step(number, wall, data_wait=0.5, forward=1.0, **evaluation))
    hand.wait(14)
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
    live.figures.add(StepRecord(0, 0, 1, None, 2.0, 0.0, {"forward": 2.0}, 1))
    known = ("step_seconds_p50", "step_seconds_p95", "data_wait_share", "unattributed_share", "wall_seconds")
    assert set(log_figures(live.figures.take_window(None), live, None)) == {f"efficiency/{name}" for name in known}


def short(number, wall=2.0, tokens=(10, 8, 4), flops=None, peak=None, **phases):
    return step(number, wall, tokens, flops, peak, **phases)


def test_windows_tile_the_call():
    figures = RunningFigures()
    figures.add(short(1, 2.0, peak=9, data_wait=0.5))
    # The log of step 2 sees 1.5 of its 2.5 seconds.
    first = figures.take_window(short(2, 1.5, data_wait=0.5))
    assert (first.steps, first.wall_seconds, first.non_padding, first.peak_allocated_bytes) == (2, 3.5, 16, 9)
    assert list(first.step_seconds) == [2.0, 1.5]
    figures.add(short(2, 2.5, data_wait=0.5))
    figures.add(short(3, 3.0, tokens=(10, None, 4), peak=4))
    second = figures.take_window(None)
    assert (second.steps, second.wall_seconds, second.data_wait_seconds) == (1, 4.0, 0.0)
    assert (second.processed, second.non_padding, second.peak_allocated_bytes) == (10, None, 4)
    assert list(second.step_seconds) == [3.0]
    third = figures.take_window(short(4, 1.0))  # which knows its tokens, unlike the window before
    assert (third.steps, third.wall_seconds, third.non_padding, third.peak_allocated_bytes) == (1, 1.0, 8, None)
    assert list(third.step_seconds) == [1.0]
    figures.add(short(4, 1.25))
    whole = figures.whole()
    assert (whole.steps, whole.wall_seconds, whole.peak_allocated_bytes) == (4, 8.75, 9)
    assert whole.wall_seconds == first.wall_seconds + second.wall_seconds + third.wall_seconds + 0.25


def recent(figures):
    found = figures.recent()
    return found.steps, found.training_seconds, found.non_padding, found.model_flops


def test_the_pace_is_that_of_the_last_steps_without_the_warm_up():
    figures = RunningFigures()
    assert figures.step_seconds() is None
    for number, wall in enumerate([50.0, 40.0, 30.0, 2.0, 2.0, 4.0, 4.0], start=1):
        figures.add(short(number, wall, tokens=(10, number, 4), flops=10))
    assert figures.step_seconds() == 3.0
    assert recent(figures) == (4, 12.0, 4 + 5 + 6 + 7, 40)
    for number in range(8, 108):
        figures.add(short(number, 1.0))
    assert figures.step_seconds() == 1.0  # the last hundred
    assert recent(figures) == (100, 100.0, 800, None)


def test_evaluations_and_saves_by_their_step():
    figures = RunningFigures()
    figures.evaluations.add(10, 20.0)
    figures.evaluations.add(10, 10.0)  # its second data set
    figures.evaluations.add(20, 40.0)
    figures.saves.add(20, 3.0)
    assert (figures.evaluations.mean_seconds, figures.saves.mean_seconds) == (35.0, 3.0)
    resumed = RunningFigures(Earlier(100.0, evaluations=2, evaluation_seconds=50.0))
    resumed.evaluations.add(30, 40.0)
    assert resumed.evaluations.mean_seconds == 30.0


def test_steps_that_have_ended_are_caught_up_with_before_anything_is_told():
    figures = RunningFigures(catch_up=lambda: figures.add(short(1, 2.0)))
    assert figures.steps == 1
    assert figures.whole().wall_seconds == 4.0
    assert figures.take_window(None).wall_seconds == 6.0
    assert figures.step_seconds() == 2.0


def run(hand, steps=6, wall=1.0, max_steps=1000):
    """A hundred seconds have been spent; so many steps took so long each."""
    live = LiveRun(timeline_of(hand), RunningFigures())
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
def test_the_next_look_comes_when_it_is_worth_it(hand, seconds, next_step):
    look = BudgetWatch(Limits(hours=seconds / 3600)).look(run(hand, max_steps=7), 6, evaluates=False, saves=False)
    assert look == Look(None, None, next_step)


START = {"kind": "process", "schema_version": 1, "way": "recipe", "process_start_from": "kernel"}
ALIVE = {"kind": "alive", "started_at_seconds": 5.0, "open_phase": None, "phase_seconds": {}, "memory": {}}
END = {"kind": "end", "ended": "done", "error": None, "memory": {}}


def write_spans(folder, *lines):
    (folder / "spans.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_walls_evaluations_and_saves_of_earlier_processes(tmp_path):
    write_spans(
        tmp_path,
        {**START, "process": 0, "began_at_seconds": 0.0},
        {"kind": "evaluation", "process": 0, "at_seconds": 20.0, "step": 0, "seconds": 8.0, "metrics": {}},
        {"kind": "evaluation", "process": 0, "at_seconds": 40.0, "step": 5, "seconds": 10.0, "metrics": {}},
        {"kind": "save", "process": 0, "at_seconds": 42.0, "step": 5, "seconds": 2.0},
        {**END, "process": 0, "at_seconds": 50.0},
        {**START, "process": 1, "began_at_seconds": 5.0},  # killed: its last heartbeat is at 25 s
        {**ALIVE, "process": 1, "at_seconds": 25.0},
    )
    assert read_earlier(tmp_path) == Earlier(70.0, 2, 18.0, 1, 2.0, joules=None, failures=1)


def test_each_process_is_paid_at_its_own_price(tmp_path):
    lines = []

    def price(number, usd):
        stated = {"price_usd_per_hour": usd, "source": "the bill", "estimated": False}
        return {"kind": "facts", "process": number, "facts": {"price": stated}}

    for number, usd, seconds in ((0, 1.0, 1800.0), (1, 10.0, 360.0)):
        lines += [{**START, "process": number, "began_at_seconds": 0.0}, price(number, usd)]
        lines.append({**END, "process": number, "at_seconds": seconds})
    write_spans(tmp_path, *lines)
    found = read_earlier(tmp_path)
    assert found.cost_usd == pytest.approx(0.5 + 1.0)
    assert found.cost_at(100.0) == found.cost_usd
    # A price that nobody stated is that of this start.
    assert [Earlier(wall_seconds=1800.0).cost_at(price) for price in (10.0, None)] == [5.0, None]


def test_the_energy_of_all_ranks(tmp_path):
    write_spans(tmp_path, {**START, "process": 0, "began_at_seconds": 0.0})
    for rank, watts in ((0, 100.0), (1, 50.0)):
        meter = {"id": f"gpu {rank}", "machine": "m", "source": "nvml", "unit": "watts", "note": ""}
        lines = [
            {"schema_version": 1, "process": 0, "at_seconds": 1.0, "watts": {"GPU": watts}, "meters": {"GPU": meter}},
            {"schema_version": 1, "process": 0, "at_seconds": 3.0, "watts": {"GPU": watts}},
        ]
        path = tmp_path / ("system.jsonl" if rank == 0 else "system.rank1.jsonl")
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_earlier(tmp_path).joules == 2 * 100.0 + 2 * 50.0


def test_a_run_that_begins_has_spent_nothing(tmp_path):
    assert read_earlier(tmp_path) == Earlier(0.0, 0, 0.0, 0, 0.0, joules=0.0)


def test_records_that_cannot_be_read_are_told_and_count_from_now(tmp_path, caplog):
    write_spans(tmp_path, {"kind": "process", "process": 0, "schema_version": 9})
    with caplog.at_level(logging.WARNING):
        assert read_earlier(tmp_path) == Earlier()
    assert "What this run has spent so far cannot be read" in caplog.text
