from __future__ import annotations

import itertools

import pytest

from hf_efficient.recording.phases import PhaseClock, RangedClock, mark_phases, phase_clock


class Ranges:
    """Keeps which ranges are open, and every call."""

    def __init__(self):
        self.open, self.calls = [], []

    def range_push(self, name):
        self.open.append(name)
        self.calls.append(name)

    def range_pop(self):
        self.calls.append(f"/{self.open.pop()}")


@pytest.fixture
def marked():
    ranges = Ranges()
    mark_phases(ranges)
    yield ranges
    mark_phases(None)


def test_nothing_is_marked_while_it_is_off():
    assert type(phase_clock(lambda: 0)) is PhaseClock


def test_a_range_per_phase(marked):
    clock = phase_clock(itertools.count().__next__)
    step = clock.enter("forward")
    clock.enter("host_to_device")  # left open by an exception
    clock.leave(step)
    clock.leave(step)
    evaluation = clock.enter("evaluation", opaque=True)
    clock.leave(clock.enter("forward"))  # not told apart in an evaluation
    clock.leave(evaluation)
    clock.enter("optimizer")
    clock.cut()
    assert marked.calls == [
        *("forward", "host_to_device", "/host_to_device", "/forward"),
        *("evaluation", "/evaluation", "optimizer", "/optimizer"),
    ]


def test_the_times_are_those_of_a_clock_without_ranges():
    def spans(clock):
        outer = clock.enter("backward")
        clock.leave(clock.enter("communication"))
        clock.leave(outer)
        return clock.cut()

    assert spans(RangedClock(itertools.count().__next__, Ranges())) == spans(PhaseClock(itertools.count().__next__))


def test_what_is_marked_is_a_range_around_those_that_were_entered(marked):
    clock = phase_clock(itertools.count().__next__)
    forward, backward, nothing = (clock.marker(phase, pytest.fail) for phase in ("forward", "backward", None))
    forward()
    inside = clock.enter("compilation")
    backward()  # its range would not lie around the one that is open
    clock.leave(inside)
    backward()
    nothing()
    evaluation = clock.enter("evaluation", opaque=True)
    forward()
    clock.leave(evaluation)
    forward()
    clock.enter("optimizer")
    clock.cut()
    assert marked.open == []
    assert marked.calls == [
        *("forward", "compilation", "/compilation", "/forward", "backward", "/backward"),
        *("evaluation", "/evaluation", "forward", "optimizer", "/optimizer", "/forward"),
    ]


def test_the_range_of_what_was_marked_before_goes_on(marked):
    clock = phase_clock(itertools.count().__next__)
    forward, copying = (clock.marker(phase, pytest.fail) for phase in ("forward", "host_to_device"))
    forward()
    before = copying()
    before()
    clock.cut()
    assert marked.calls == ["forward", "/forward", "host_to_device", "/host_to_device", "forward", "/forward"]


def test_a_range_that_cannot_be_opened_is_told_of():
    class Broken(Ranges):
        def range_push(self, name):
            raise RuntimeError("NVTX functions not installed")

    faults = []
    clock = RangedClock(itertools.count().__next__, Broken())
    clock.marker("forward", lambda: faults.append("fault"))()
    assert faults == ["fault"]
