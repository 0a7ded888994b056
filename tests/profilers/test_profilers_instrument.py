"""An instrument is driven, its cost measured, its faults caught."""

from __future__ import annotations

import logging

import pytest

from hf_efficient.profilers.instrument import Instrument, InstrumentRun


class Facts:
    """A timeline that keeps what it is told."""

    def __init__(self):
        self.told = {}

    def state(self, topic, facts):
        self.told.setdefault(topic, {}).update(facts)


class Clock:
    """Stands still unless it is moved on."""

    def __init__(self):
        self.seconds = 100.0

    def __call__(self):
        return self.seconds


class Slow(Instrument):
    """Takes a second to start, half a second after each step, two to stop; the third and fourth step are under it."""

    name = "slow"

    def __init__(self, clock, fails_at=None):
        super().__init__()
        self.clock, self.fails_at, self.stopped = clock, fails_at, 0

    def start(self, place):
        self.place = place
        self.clock.seconds += 1.0

    def step_ends(self, step):
        self.clock.seconds += 0.5
        if step == self.fails_at:
            raise OSError("disk full")
        self.active = step in (2, 3)
        if step == 4:
            path = self.place.directory / "slow.json"
            path.write_text("{}")
            self.files.append(path)

    def stop(self):
        self.stopped += 1
        self.clock.seconds += 2.0


def train(run, clock, tmp_path, steps=(5.0, 1.0, 3.0, 3.0, 1.0, 1.0)):
    run.begin(tmp_path / "profile", 0)
    for step, lasts in enumerate(steps, start=1):
        clock.seconds += lasts / 2
        run.step_begins(step)
        clock.seconds += lasts / 2
        run.step_ends(step)


def test_its_own_time_and_what_its_steps_were_slower(tmp_path):
    clock, facts = Clock(), Facts()
    run = InstrumentRun(Slow(clock), facts, clock)
    train(run, clock, tmp_path)
    run.end()
    run.end()
    told = facts.told["profile"]["slow"]
    assert told["own_seconds"] == pytest.approx(1.0 + 6 * 0.5 + 2.0)
    assert told["cost_seconds"] == pytest.approx(6.0 + 2 * (3.0 - 1.0))  # the first step warms up: not compared
    assert (told["steps"], told["files"]) == (2, ["profile/slow.json"])
    assert told["note"] == "its steps compared with 3 others, by their medians"


def test_what_it_wrote_is_told_at_once(tmp_path):
    clock, facts = Clock(), Facts()
    run = InstrumentRun(Slow(clock), facts, clock)
    train(run, clock, tmp_path, steps=(1.0,) * 4)
    assert facts.told["profile"]["slow"]["files"] == ["profile/slow.json"]  # should the process be killed now
    run.end()


def test_a_fault_ends_it_with_one_warning(tmp_path, caplog):
    clock, facts = Clock(), Facts()
    slow = Slow(clock, fails_at=2)
    run = InstrumentRun(slow, facts, clock)
    with caplog.at_level(logging.WARNING):
        train(run, clock, tmp_path)
        run.end()
    assert [record.message for record in caplog.records] == [
        "profile.slow ends here, because of a fault; training goes on."
    ]
    assert slow.stopped == 1
    assert facts.told["profile"]["slow"]["note"] == "ended by a fault: OSError: disk full"


def test_a_second_training_starts_anew(tmp_path):
    clock, facts = Clock(), Facts()
    run = InstrumentRun(Slow(clock), facts, clock)
    train(run, clock, tmp_path)
    train(run, clock, tmp_path, steps=(1.0, 1.0))  # the first was ended by an exception that nobody told
    run.end()
    told = facts.told["profile"]["slow"]
    assert (told["steps"], told["files"]) == (0, [])
    assert told["own_seconds"] == pytest.approx(1.0 + 2 * 0.5 + 2.0)
