from __future__ import annotations

import pytest

from hf_efficient.measure.phases import PhaseClock, Span


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
