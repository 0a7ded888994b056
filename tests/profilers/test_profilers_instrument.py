"""An instrument is driven, its cost measured, its faults caught; and what Nsight hears from inside."""

from types import SimpleNamespace

import pytest

from hf_efficient.profilers.instrument import Capture, Instrument, InstrumentRun, NvtxRanges, Place


class Facts:
    """A timeline that keeps what it is told."""

    def __init__(self):
        self.told = {}

    def state(self, topic, facts):
        self.told.setdefault(topic, {}).update(facts)


class Clock:
    """Stands still unless it is moved on."""

    seconds = 100.0

    def __call__(self):
        return self.seconds


class Slow(Instrument):
    """Takes a second to start, half a second after each step, two to stop; the third and fourth step are under it."""

    name = "slow"

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def start(self, place):
        self.place = place
        self.clock.seconds += 1.0

    def step_ends(self, step):
        self.clock.seconds += 0.5
        self.active = step in (2, 3)
        if step == 4:
            path = self.place.directory / "slow.json"
            path.write_text("{}")
            self.files.append(path)

    def stop(self):
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
    assert facts.told["profile"]["slow"]["files"] == ["profile/slow.json"]  # should the process be killed now
    run.end()
    run.end()
    told = facts.told["profile"]["slow"]
    assert told["own_seconds"] == pytest.approx(1.0 + 6 * 0.5 + 2.0)
    assert told["cost_seconds"] == pytest.approx(6.0 + 2 * (3.0 - 1.0))  # the first step warms up: not compared
    assert (told["steps"], told["files"]) == (2, ["profile/slow.json"])
    assert told["note"] == "its steps compared with 3 others, by their medians"


def train_with(instrument, tmp_path, steps):
    instrument.start(Place(tmp_path, 0))
    under = []
    for step in range(1, steps + 1):
        under.append(instrument.active)
        instrument.step_begins(step)
        instrument.step_ends(step)
    instrument.stop()
    return under


@pytest.mark.parametrize(
    ("steps", "calls", "under"),
    [
        (6, ["start", "stop"], [False, False, True, True, False, False]),
        (3, ["start", "stop"], [False, False, True]),  # training ends inside
        (2, ["start", "stop"], [False, False]),
        (1, [], [False]),
    ],
)
def test_the_steps_that_are_captured(tmp_path, monkeypatch, steps, calls, under):
    found = []
    profiler = SimpleNamespace(start=lambda: found.append("start"), stop=lambda: found.append("stop"))
    monkeypatch.setattr("torch.cuda.profiler", profiler)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert train_with(Capture(2, 2), tmp_path, steps) == under
    assert found == calls


@pytest.mark.parametrize("instrument", [NvtxRanges(), Capture()])
def test_without_a_gpu_it_says_so(tmp_path, instrument, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert train_with(instrument, tmp_path, 7) == [False] * 7
    assert instrument.notes == ["needs a CUDA device, and there is none"]
