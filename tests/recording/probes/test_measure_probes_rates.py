"""Counters as rates, by a clock that is set by hand."""

from __future__ import annotations

from hf_efficient.recording.probes import Rates


def test_rises_per_second():
    rates = Rates()
    assert rates.of(10.0, {"a": 100, "b": 5}) == {}
    assert rates.of(14.0, {"a": 300, "b": 5}) == {"a": 50.0, "b": 0.0}


def test_a_counter_that_fell_or_is_new_tells_nothing():
    rates = Rates()
    rates.of(0.0, {"a": 100})
    assert rates.of(1.0, {"a": 50, "b": 7}) == {}
    assert rates.of(2.0, {"a": 60, "b": 9}) == {"a": 10, "b": 2}


def test_two_readings_of_one_moment_tell_nothing():
    rates = Rates()
    rates.of(1.0, {"a": 1})
    assert rates.of(1.0, {"a": 2}) == {}
