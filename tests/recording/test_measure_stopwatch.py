"""Timing: on a replayed CUDA device and on a clock set by hand."""

from __future__ import annotations

import pytest
from tests.measure.fake_device import Device

from hf_efficient.profilers.stopwatch import EventStopwatch, HostStopwatch, steady_seconds


class Replay:
    """A CUDA device whose kernels take 2 ms each, told to by a host that needs 0.01 ms."""

    def __init__(self, kernel=2e-3, launch=1e-5):
        self.device, self.kernel, self.launch, self.calls = Device(), kernel, launch, 0
        self.watch = EventStopwatch(self.device.event, self.synchronize)

    def synchronize(self):
        self.device.host = max(self.device.host, self.device.done_at)

    def work(self):
        self.calls += 1
        self.device.host += self.launch
        self.device.queue(self.kernel)


def test_events_time_the_device_and_not_the_host():
    """The first kernel starts as soon as it is launched: its launch is all of the host's time that counts."""
    replay = Replay()
    assert replay.watch.seconds(replay.work, 100) == pytest.approx((100 * 2e-3 + 1e-5) / 100)
    assert replay.device.host == pytest.approx(0.2 + 1e-5)


def test_kernels_shorter_than_their_launch_take_as_long_as_it():
    replay = Replay(kernel=1e-6, launch=1e-5)
    assert replay.watch.seconds(replay.work, 100) == pytest.approx((100 * 1e-5 + 1e-6) / 100)


def test_settling_waits_for_the_device():
    replay = Replay()
    replay.work()
    replay.watch.settle()
    assert replay.device.host == pytest.approx(2e-3 + 1e-5)


def test_rounds_are_long_enough():
    """30 ms of 2 ms kernels: 15 a round, five rounds, after a first call and one to tell how long it is."""
    replay = Replay(launch=0.0)
    assert steady_seconds(replay.watch, replay.work) == pytest.approx(2e-3)
    assert replay.calls == 1 + 1 + 5 * 15


class Told:
    """A watch that says what it was told to."""

    def __init__(self, *seconds):
        self.answers, self.asked = list(seconds), []

    def seconds(self, work, times):
        self.asked.append(times)
        return self.answers.pop(0)

    def settle(self):
        self.asked.append("settle")


def test_one_slow_round_does_not_matter():
    watch = Told(0.01, 0.010, 0.011, 0.500, 0.012, 0.009)
    assert steady_seconds(watch, lambda: None) == 0.011
    assert watch.asked == ["settle", 1, 3, 3, 3, 3, 3]


@pytest.mark.parametrize(("once", "times"), [(0.0, 1000), (1e-9, 1000), (2.0, 1)])
def test_rounds_are_neither_empty_nor_endless(once, times):
    watch = Told(once, *[1.0] * 5)
    steady_seconds(watch, lambda: None)
    assert watch.asked[2:] == [times] * 5


def test_the_host_times_by_its_clock():
    now = [5.0]

    def work():
        now[0] += 0.25

    watch = HostStopwatch(lambda: now[0])
    assert watch.seconds(work, 8) == 0.25
    watch.settle()
    assert now == [7.0]
