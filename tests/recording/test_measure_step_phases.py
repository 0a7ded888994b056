from __future__ import annotations

import pytest
from hand_clock import SECOND, Hand

from hf_efficient.recording.phases import NO_MARKS, StepPhases


class Watch:
    """Of a device: what it is told."""

    def __init__(self):
        self.told = []

    def enter(self, name):
        self.told.append(f"+{name}")

    def leave(self, name):
        self.told.append(f"-{name}")

    def cut(self):
        self.told.append("cut")
        return "times", "memory"


def seconds(phases):
    span, *_ = phases.cut()
    return {name: ns / SECOND for name, ns in span.phase_ns.items()}


def broken():
    raise AssertionError("nothing failed")


@pytest.fixture
def hand():
    return Hand()


def test_a_context_may_be_entered_inside_itself(hand):
    phases = StepPhases(hand, None, broken)
    with phases.context("forward"):
        hand.wait(1)
        with phases.context("backward"), phases.context("forward"):
            hand.wait(2)
        hand.wait(4)
    hand.wait(8)
    assert seconds(phases) == {"forward": 7.0, "backward": 0.0}


def test_an_opaque_context_and_an_open_one_of_the_same_name(hand):
    phases = StepPhases(hand, None, broken)
    with phases.context("evaluation", opaque=True), phases.context("evaluation"), phases.context("forward"):
        hand.wait(1)
    with phases.context("evaluation"), phases.context("forward"):
        hand.wait(2)
    assert seconds(phases) == {"evaluation": 1.0, "forward": 2.0}


def test_what_has_begun_goes_on_until_it_ends(hand):
    watch = Watch()
    phases = StepPhases(hand, watch, broken)
    phases.begin("optimizer")
    hand.wait(1)
    phases.begin("optimizer")
    hand.wait(2)
    phases.end("optimizer")
    hand.wait(4)
    phases.end("optimizer")
    phases.begin("data_wait")
    hand.wait(8)
    phases.end_all()
    hand.wait(16)
    assert seconds(phases) == {"optimizer": 3.0, "data_wait": 8.0}
    assert watch.told == ["+optimizer", "-optimizer", "+data_wait", "-data_wait", "cut"]


def test_a_cut_closes_what_has_begun(hand):
    phases = StepPhases(hand, Watch(), broken)
    phases.begin("optimizer")
    hand.wait(1)
    span, times, memory = phases.cut()
    assert (span.phase_ns, times, memory) == ({"optimizer": SECOND}, "times", "memory")
    hand.wait(2)
    phases.begin("optimizer")
    hand.wait(4)
    assert seconds(phases) == {"optimizer": 4.0}


def test_faults_are_handed_on_and_the_block_runs(hand):
    def fail():
        raise OSError("no clock")

    faults = []
    phases = StepPhases(hand, None, lambda: faults.append("fault"))
    phases.clock._now = fail
    with phases.context("forward"):
        ran = True
    assert ran
    assert faults == ["fault"]
    phases.clock._now = hand
    with pytest.raises(ZeroDivisionError), phases.context("forward"):
        hand.wait(1 / 0)
    with phases.context("forward"):
        hand.wait(1)
    assert seconds(phases) == {"forward": 1.0}
    assert faults == ["fault"]


def test_a_phase_takes_the_place_of_the_one_around_it_on_the_device_and_hands_it_back(hand):
    watch = Watch()
    phases = StepPhases(hand, watch, broken)
    with phases.context("forward"):
        hand.wait(1)
        phases.begin("communication", instead_of="forward")
        hand.wait(2)
        phases.end("communication", then="forward")
        hand.wait(4)
    with phases.context("backward"):
        hand.wait(8)
        phases.begin("communication", instead_of="backward")
        hand.wait(16)
        phases.end("communication")
    assert seconds(phases) == {"forward": 5.0, "communication": 18.0, "backward": 8.0}
    forward = ["+forward", "-forward", "+communication", "-communication", "+forward", "-forward"]
    assert watch.told == [*forward, "+backward", "-backward", "+communication", "-communication", "-backward", "cut"]


def test_a_wait_is_communication_of_the_host_and_one_inside_another_is_part_of_it(hand):
    watch = Watch()
    phases = StepPhases(hand, watch, broken)
    with phases.context("data_wait"):
        hand.wait(1)
        with phases.wait():
            hand.wait(2)
        hand.wait(4)
    phases.begin("communication")
    with phases.wait():
        hand.wait(8)
    hand.wait(16)
    phases.end("communication")
    assert phases.take_waits() == {}
    assert seconds(phases) == {"data_wait": 5.0, "communication": 26.0}
    assert watch.told == ["+data_wait", "-data_wait", "cut"]


def test_a_wait_in_an_opaque_phase_is_counted_beside_it(hand):
    phases = StepPhases(hand, None, broken)
    for _ in range(2):
        with phases.context("evaluation", opaque=True):
            hand.wait(1)
            with phases.wait():
                hand.wait(2)
    assert phases.take_waits() == {"evaluation": 4 * SECOND}
    assert phases.take_waits() == {}
    assert seconds(phases) == {"evaluation": 6.0}


def test_marks_are_told_to_the_device_once_each_and_what_is_of_the_host_is_not(hand):
    watch = Watch()
    phases = StepPhases(hand, watch, broken)
    marks = phases.marks
    for mark in (marks.data_wait, marks.bookkeeping, marks.nothing, marks.forward, marks.nothing, marks.backward):
        mark()
        hand.wait(1)
    with phases.context("evaluation", opaque=True):
        marks.forward()
        hand.wait(2)
    for mark in (marks.device_wait, marks.optimizer, marks.optimizer):
        mark()
        hand.wait(4)
    assert seconds(phases) == {
        **{"data_wait": 1.0, "bookkeeping": 1.0, "forward": 1.0, "backward": 1.0, "evaluation": 2.0},
        **{"device_wait": 4.0, "optimizer": 8.0},
    }
    step = ["+data_wait", "-data_wait", "+forward", "-forward", "+backward", "+evaluation", "-evaluation", "-backward"]
    assert watch.told == [*step, "+optimizer", "cut"]
    marks.optimizer()
    assert watch.told[-1] == "+optimizer"  # of the next step


def test_an_abandoned_step_leaves_nothing_marked(hand):
    phases = StepPhases(hand, None, broken)
    phases.marks.forward()
    hand.wait(1)
    phases.abandon()
    hand.wait(2)
    assert seconds(phases) == {"forward": 1.0}


@pytest.mark.parametrize("watch", [None, Watch()])
def test_what_was_marked_before_goes_on(hand, watch):
    marks = (phases := StepPhases(hand, watch, broken)).marks
    outermost = marks.optimizer()
    hand.wait(1)
    outer = marks.forward()
    inner = marks.host_to_device()
    hand.wait(2)
    inner()
    hand.wait(4)
    outer()
    hand.wait(8)
    outermost()
    hand.wait(16)
    assert (outermost, outer, inner) == (marks.nothing, marks.optimizer, marks.forward)
    marks.forward()
    assert seconds(phases) == {"optimizer": 9.0, "forward": 4.0, "host_to_device": 2.0}
    assert marks.backward() == marks.nothing  # of the next step


def test_a_device_is_told_nothing_once_the_loop_is_over(hand):
    watch = Watch()
    phases = StepPhases(hand, watch, broken)
    before = phases.marks.forward()
    phases.is_over = True
    phases.marks.backward()
    before()
    assert watch.told == ["+forward"]


def test_where_no_step_is_recorded_marks_do_nothing():
    NO_MARKS.forward()()
    NO_MARKS.nothing()
