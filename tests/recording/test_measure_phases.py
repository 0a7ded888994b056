from __future__ import annotations

import pytest

import hf_efficient.recording.phases as phases_module
from hf_efficient.recording.phases import Glimpse, PhaseClock, Span


class Hand:
    """A clock set by hand, in nanoseconds."""

    def __init__(self, at=0):
        self.at = at

    def __call__(self):
        return self.at


@pytest.fixture
def hand():
    return Hand(100)


def test_phases_one_after_the_other(hand):
    clock = PhaseClock(hand)
    hand.at = 110
    token = clock.enter("data_wait")
    hand.at = 130
    clock.leave(token)
    hand.at = 135
    token = clock.enter("forward")
    hand.at = 175
    clock.leave(token)
    token = clock.enter("data_wait")
    hand.at = 176
    clock.leave(token)
    hand.at = 180
    assert clock.cut() == Span(start_ns=100, wall_ns=80, phase_ns={"data_wait": 21, "forward": 40})


def test_an_inner_phase_is_not_counted_for_the_outer(hand):
    clock = PhaseClock(hand)
    outer = clock.enter("forward")
    hand.at = 103
    inner = clock.enter("communication")
    hand.at = 110
    innermost = clock.enter("forward")
    hand.at = 111
    clock.leave(innermost)
    clock.leave(inner)
    hand.at = 131
    clock.leave(outer)
    assert clock.cut() == Span(100, 31, {"forward": 24, "communication": 7})


def test_inside_an_opaque_phase_nothing_is_told_apart(hand):
    clock = PhaseClock(hand)
    evaluation = clock.enter("evaluation", opaque=True)
    hand.at = 110
    forward = clock.enter("forward")
    hand.at = 120
    nested = clock.enter("logging", opaque=True)
    clock.leave(nested)
    clock.leave(forward)
    hand.at = 130
    clock.leave(evaluation)
    after = clock.enter("forward")
    hand.at = 135
    clock.leave(after)
    assert clock.cut() == Span(100, 35, {"evaluation": 30, "forward": 5})


def test_an_opaque_phase_inside_another_phase_ends_with_itself(hand):
    clock = PhaseClock(hand)
    outer = clock.enter("optimizer")
    hand.at = 101
    clock.leave(clock.enter("evaluation", opaque=True))
    inner = clock.enter("forward")
    hand.at = 104
    clock.leave(inner)
    clock.leave(outer)
    assert clock.cut() == Span(100, 4, {"optimizer": 1, "evaluation": 0, "forward": 3})


def test_leaving_the_outer_closes_what_an_exception_left_open(hand):
    clock = PhaseClock(hand)
    outer = clock.enter("forward")
    clock.enter("evaluation", opaque=True)
    hand.at = 105
    clock.leave(outer)
    hand.at = 109
    late = clock.enter("backward")
    hand.at = 110
    clock.leave(late)
    assert clock.cut() == Span(100, 10, {"forward": 0, "evaluation": 5, "backward": 1})


def test_a_token_closed_already_does_nothing(hand):
    clock = PhaseClock(hand)
    stale = clock.enter("forward")
    hand.at = 102
    clock.cut()
    fresh = clock.enter("backward")
    hand.at = 104
    clock.leave(stale)
    hand.at = 107
    clock.leave(fresh)
    clock.leave(fresh)
    clock.leave(0)
    assert clock.cut() == Span(102, 5, {"backward": 5})


def test_cut_closes_open_phases_and_tiles(hand):
    clock = PhaseClock(hand)
    clock.enter("evaluation", opaque=True)
    hand.at = 150
    assert clock.cut() == Span(100, 50, {"evaluation": 50})
    hand.at = 160
    token = clock.enter("forward")
    hand.at = 170
    clock.leave(token)
    assert clock.cut() == Span(150, 20, {"forward": 10})
    assert clock.cut() == Span(170, 0, {})


def marker(clock, phase):
    return clock.marker(phase, broken)


def broken():
    raise AssertionError("nothing failed")


def test_marks_outside_all_phases_that_were_entered(hand):
    clock = PhaseClock(hand)
    forward, nothing, optimizer = (marker(clock, phase) for phase in ("forward", None, "optimizer"))
    hand.at += 1  # in no phase
    forward()
    hand.at += 2
    nothing()
    hand.at += 4
    forward()
    hand.at += 8
    optimizer()
    optimizer()
    hand.at += 16
    assert clock.glimpse() == Glimpse(0, 100, 115, {"forward": 10, "optimizer": 0}, "optimizer")
    assert clock.cut() == Span(100, 31, {"forward": 10, "optimizer": 16})
    hand.at += 32
    assert clock.cut() == Span(131, 32, {})


def test_a_phase_that_was_entered_goes_before_what_is_marked_around_it(hand):
    clock = PhaseClock(hand)
    marker(clock, "forward")()
    hand.at += 1
    token = clock.enter("compilation")
    hand.at += 2
    marker(clock, "backward")()
    hand.at += 4
    clock.leave(token)
    hand.at += 8
    assert clock.cut() == Span(100, 15, {"forward": 1, "compilation": 6, "backward": 8})


def test_marks_inside_an_opaque_phase_are_none(hand):
    clock = PhaseClock(hand)
    bookkeeping = marker(clock, "bookkeeping")
    bookkeeping()
    hand.at += 1
    token = clock.enter("evaluation", opaque=True)
    for _ in range(1000):
        assert marker(clock, "forward")() is bookkeeping
    assert not clock._marks  # an evaluation may be long
    hand.at += 2
    assert clock.glimpse().phase_ns == {"bookkeeping": 1}
    assert clock.glimpse().open_phase == "evaluation"
    marker(clock, None)()
    clock.leave(token)
    hand.at += 4
    assert clock.cut() == Span(100, 7, {"bookkeeping": 5, "evaluation": 2})


def test_a_cut_at_the_last_reading_ends_with_the_last_mark(hand):
    clock = PhaseClock(hand)
    marker(clock, "forward")()
    hand.at += 1
    marker(clock, "backward")()
    hand.at += 2
    assert clock.cut(at_last_reading=True) == Span(100, 1, {"forward": 1})


def test_a_stopped_clock_stands_at_its_last_mark(hand):
    clock = PhaseClock(hand)
    marker(clock, "forward")()
    hand.at += 1
    marker(clock, "backward")()
    hand.at += 2
    clock.stop()
    hand.at += 4
    assert clock.glimpse().mark_ns == 101
    assert clock.cut() == Span(100, 1, {"forward": 1, "backward": 0})


def test_a_span_is_worked_out_when_somebody_asks_and_stays_as_it_is(hand):
    clock = PhaseClock(hand)
    marker(clock, "forward")()
    hand.at += 1
    first = clock.cut()
    marker(clock, "optimizer")()
    hand.at += 2
    assert clock.cut() == Span(101, 2, {"optimizer": 2})
    assert first.phase_ns == {"forward": 1}
    assert repr(first) == "Span(start_ns=100, wall_ns=1, phase_ns={'forward': 1})"
    assert first != Span(100, 1, {"backward": 1})


def test_a_mark_that_fails_is_told_of():
    def fail():
        if faults is not None:
            raise OSError("no clock")
        return 0

    faults = None
    clock = PhaseClock(fail)
    faults = []
    clock.marker("forward", lambda: faults.append("fault"))()
    assert faults == ["fault"]


def test_a_look_while_marks_are_charged_sees_all_of_them_or_none(hand, monkeypatch):
    clock, seen = PhaseClock(hand), []
    monkeypatch.setattr(phases_module, "_charged", looks_after(clock, seen, phases_module._charged))
    for phase in ("forward", "backward", "forward", None):
        marker(clock, phase)()
        hand.at += 1
    clock.enter("logging")
    assert [sum(look.phase_ns.values()) for look in seen] == [3]
    assert clock.glimpse().phase_ns == {"forward": 2, "backward": 1}


def looks_after(clock, seen, charged):
    """The function, and a look of another thread before its result is taken in."""

    def both(*args):
        result = charged(*args)
        if not seen:
            seen.append(None)  # the look itself charges a copy
            seen[0] = clock.glimpse()
        return result

    return both
