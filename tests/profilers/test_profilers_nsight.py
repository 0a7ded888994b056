"""What Nsight is told from inside: ranges of steps, and where to begin and end."""

from __future__ import annotations

import itertools

import pytest

from hf_efficient.profilers.instrument import Place
from hf_efficient.profilers.nsight import Capture, NvtxRanges
from hf_efficient.recording.events import EventLog


class Marker:
    """Stands for ``torch.cuda.nvtx``."""

    def __init__(self):
        self.calls, self._ids = [], itertools.count(1)

    def range_start(self, name):
        self.calls.append(name)
        return next(self._ids)

    def range_end(self, number):
        self.calls.append(-number)

    def range_push(self, name):
        self.calls.append(name)

    def range_pop(self):
        self.calls.append("/")


class Profiler:
    """Stands for ``torch.cuda.profiler``."""

    def __init__(self):
        self.calls = []

    def start(self):
        self.calls.append("start")

    def stop(self):
        self.calls.append("stop")


def train(instrument, tmp_path, steps):
    instrument.start(Place(tmp_path, 0))
    under = []
    for step in range(1, steps + 1):
        under.append(instrument.active)
        instrument.step_begins(step)
        instrument.step_ends(step)
    instrument.stop()
    return under


def test_a_range_per_step(tmp_path):
    marker = Marker()
    nvtx = NvtxRanges(marker)
    train(nvtx, tmp_path, 2)
    assert marker.calls == ["step 1", -1, "step 2", -2]


def test_loops_that_begin_meanwhile_mark_their_phases(tmp_path):
    marker = Marker()
    nvtx = NvtxRanges(marker)
    nvtx.start(Place(tmp_path, 0))
    for expected in (["forward", "/"], []):
        log = EventLog(lambda: 0)
        log.loop(True)
        log.mark("forward")
        log.loop(False)
        assert marker.calls == expected
        nvtx.stop()
        marker.calls.clear()


@pytest.mark.parametrize(
    ("steps", "calls", "under"),
    [
        (6, ["start", "stop"], [False, False, True, True, False, False]),
        (3, ["start", "stop"], [False, False, True]),  # training ends inside
        (2, ["start", "stop"], [False, False]),
        (1, [], [False]),
    ],
)
def test_the_steps_that_are_captured(tmp_path, steps, calls, under):
    profiler = Profiler()
    assert train(Capture(2, 2, profiler), tmp_path, steps) == under
    assert profiler.calls == calls


@pytest.mark.parametrize("instrument", [NvtxRanges(), Capture()])
def test_without_a_gpu_it_says_so(tmp_path, instrument, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert train(instrument, tmp_path, 7) == [False] * 7
    assert instrument.notes == ["needs a CUDA device, and there is none"]
