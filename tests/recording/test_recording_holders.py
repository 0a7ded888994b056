"""What callbacks and methods take of the loop, by a clock that is set by hand."""

import pytest

from hf_efficient.recording.events import EventLog
from hf_efficient.recording.holders import Holders, held_seconds

S = 1_000_000_000


@pytest.fixture
def holders(hand):
    log = EventLog(hand)
    log.loop(True)
    return Holders(log)


class Handler:
    """The loop of transformers' ``CallbackHandler``."""

    def __init__(self, *callbacks):
        self.callbacks = list(callbacks)

    def call_event(self, event):
        for callback in self.callbacks:
            getattr(callback, event)()


class Waits:
    def __init__(self, hand, seconds, then=lambda: None):
        self.hand, self.seconds, self.then = hand, seconds, then

    def on_step_end(self):
        self.hand.wait(self.seconds)
        self.then()


class Fails(Waits):
    def on_step_end(self):
        self.hand.wait(7)
        raise ValueError("it failed")


def test_each_callback_is_charged_what_it_takes(hand, holders):
    handler = Handler(Waits(hand, 1))
    holders.watch_callbacks(handler)
    handler.callbacks.append(Waits(hand, 2))  # of the same class, and added later
    holders.log.mark("bookkeeping")
    handler.call_event("on_step_end")
    assert held_seconds(holders.take()) == {"bookkeeping/Waits.on_step_end": 3}
    assert [type(one) for one in handler.callbacks] == [Waits, Waits]  # which is no event
    assert holders.take() == {}


def test_a_callback_that_fails_is_raised_and_the_next_event_is_charged(hand, holders):
    handler = Handler(Fails(hand, 0))
    holders.watch_callbacks(handler)
    with pytest.raises(ValueError, match="it failed"):
        handler.call_event("on_step_end")
    handler.callbacks[0] = Waits(hand, 1)
    handler.call_event("on_step_end")
    assert held_seconds(holders.take()) == {"unattributed/Waits.on_step_end": 1}


class Owner:
    def __init__(self, hand):
        self.hand = hand

    def outer(self):
        self.hand.wait(1)
        self.inner()
        self.hand.wait(2)

    def inner(self):
        self.hand.wait(4)


def test_inside_an_opaque_phase_all_is_charged_to_it(hand, holders):
    owner = Owner(hand)
    holders.wrap(owner, "outer", "evaluation", lambda run: run(), opaque=True)
    holders.wrap(owner, "inner", "forward", lambda run: run())
    owner.outer()
    owner.inner()
    assert held_seconds(holders.take()) == {
        "evaluation/Owner.inner": 4,
        "evaluation/Owner.outer": 3,
        "forward/Owner.inner": 4,
    }


def test_outside_the_loop_nothing_is_charged(hand, holders):
    holders.log.loop(False)
    handler = Handler(Waits(hand, 1))
    holders.watch_callbacks(handler)
    handler.call_event("on_step_end")
    assert holders.take() == {}


def test_where_steps_are_short_the_callbacks_of_one_in_seven_count_for_seven(hand, holders):
    """The first 32 steps are all timed; a method of the user's own and a rare event always."""
    handler, owner = Handler(Waits(hand, 0.001)), Owner(hand)
    handler.callbacks[0].on_save = handler.callbacks[0].on_step_end
    holders.watch_callbacks(handler)
    holders.wrap(owner, "inner", "forward", lambda run: hand.wait(0.002))
    holders.log.mark("bookkeeping")
    held = []
    for _ in range(33 + 7 * 10):
        handler.call_event("on_step_end")
        owner.inner()
        held.append(held_seconds(holders.take()))
    assert {one["forward/Owner.inner"] for one in held} == {0.002}
    callbacks = [one.get("bookkeeping/Waits.on_step_end", 0.0) for one in held]
    assert callbacks[:32] == [0.001] * 32
    assert sorted(callbacks[33:]) == [0.0] * 60 + [0.007] * 10
    hand.wait(0.05)  # a step that is not short; so all of the next one is timed
    holders.take()
    handler.call_event("on_step_end")
    assert held_seconds(holders.take()) == {"bookkeeping/Waits.on_step_end": 0.001}
    handler.call_event("on_save")
    assert held_seconds(holders.take()) == {"bookkeeping/Waits.on_save": 0.001}
