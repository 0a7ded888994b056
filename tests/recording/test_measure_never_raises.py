"""Faults of instruments do not reach the training."""

from __future__ import annotations

import logging

import pytest

from hf_efficient.recording.guard import never_raises

_guarded = never_raises("Nothing is counted any more")


class Counter:
    def __init__(self):
        self.broken = False
        self.counted = 0

    @_guarded
    def count(self, by, *, times=1):
        """Adds."""
        self.counted += by * times

    @_guarded
    def leave(self):
        raise KeyboardInterrupt


def test_arguments_go_through():
    counter = Counter()
    counter.count(2, times=3)
    assert (counter.counted, counter.broken) == (6, False)
    assert (Counter.count.__name__, Counter.count.__doc__) == ("count", "Adds.")


def test_a_fault_is_told_once_and_ends_the_counting(caplog):
    counter = Counter()
    with caplog.at_level(logging.WARNING):
        counter.count("apples")
        counter.count("pears")
        counter.count(1)
    assert (counter.counted, counter.broken) == (0, True)
    (record,) = caplog.records
    assert record.getMessage() == "Nothing is counted any more, because of a fault."
    assert (record.name, record.exc_info[0]) == (__name__, TypeError)


def test_the_user_can_still_stop():
    counter = Counter()
    with pytest.raises(KeyboardInterrupt):
        counter.leave()
    assert not counter.broken
