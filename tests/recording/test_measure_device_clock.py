"""Time on a device whose work and clock are set by hand."""

from __future__ import annotations

import pytest
from fake_device import Device

from hf_efficient.recording.device import DeviceClock, EventPool


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def clock(device):
    return DeviceClock(EventPool(device.event))


def phase(clock, device, name, work, host=0.0):
    """The host queues ``work`` seconds in a phase, and takes ``host`` seconds for it."""
    clock.enter(name)
    device.queue(work)
    device.host += host
    clock.leave(name)


def step(clock, device, forward=1.0, backward=2.0, optimizer=0.5, micro_batches=1):
    for _ in range(micro_batches):
        phase(clock, device, "forward", forward)
        phase(clock, device, "backward", backward)
    phase(clock, device, "optimizer", optimizer)


def read(times):
    assert times.ready()
    return {name: pytest.approx(value) for name, value in (times.read() or {}).items()}


def test_a_step_is_read_once_the_device_has_done_it(clock, device):
    step(clock, device)
    times = clock.cut()
    assert not times.ready()
    assert times.read() is None
    device.host = 3.49
    assert not times.ready()
    device.host = 3.5
    assert read(times) == {"forward": 1.0, "backward": 2.0, "optimizer": 0.5}


def test_a_device_that_has_nothing_to_do_waits_and_one_that_is_behind_does_not(clock, device):
    step(clock, device)
    first = clock.cut()
    step(clock, device)  # queued while the device is still at the first one's forward
    second = clock.cut()
    device.host = 9.0  # the device was done at 7
    step(clock, device)
    third = clock.cut()
    device.host = 100.0
    alone = {"forward": 1.0, "backward": 2.0, "optimizer": 0.5}
    assert read(first) == alone
    assert read(second) == {"exposed_wait": 0.0, **alone}
    assert read(third) == {"exposed_wait": 2.0, **alone}


def test_a_device_that_the_host_feeds_slowly_is_busy_for_as_long_as_the_phase(clock, device):
    clock.enter("forward")
    for _ in range(4):
        device.queue(0.1)
        device.host += 0.5
    clock.leave("forward")
    device.host = 3.0
    assert read(clock.cut()) == {"forward": 2.0}


def test_micro_batches_add_up(clock, device):
    step(clock, device, micro_batches=3)
    device.host = 50.0
    step(clock, device, forward=0.25, micro_batches=2)
    clock.cut()
    device.host = 100.0
    step(clock, device, forward=0.25, micro_batches=2)
    device.host = 200.0
    # The device was done with the step before at 50 + 0.5 + 4 + 0.5.
    assert read(clock.cut()) == {"exposed_wait": 45.0, "forward": 0.5, "backward": 4.0, "optimizer": 0.5}


def test_an_evaluation_and_a_save_in_between_are_no_wait(clock, device):
    step(clock, device)
    device.host = 4.0  # idle since 3.5
    phase(clock, device, "evaluation", 10.0, host=10.0)
    device.host += 0.25  # at 14.25
    phase(clock, device, "checkpointing", 0.0, host=3.0)
    clock.cut()
    device.host += 0.125  # at 17.375
    step(clock, device)
    times = clock.cut()
    device.host = 100.0
    assert read(times)["exposed_wait"] == pytest.approx(0.5 + 0.25 + 0.125)


def test_an_evaluation_before_the_first_step_is_no_wait_either(clock, device):
    phase(clock, device, "evaluation", 1.0)
    device.host = 5.0
    step(clock, device)
    device.host = 10.0
    assert "exposed_wait" not in read(clock.cut())


def test_the_optimizer_goes_on_from_clipping_to_its_step(clock, device):
    phase(clock, device, "optimizer", 0.5)
    phase(clock, device, "optimizer", 0.0, host=2.0)
    phase(clock, device, "optimizer", 0.25)
    device.host = 10.0
    # One interval: half a second of work, idle until the host is there at 2, a quarter.
    assert read(clock.cut()) == {"optimizer": 2.25}
    assert len(device.events) == 2


def test_a_phase_inside_another_is_part_of_it(clock, device):
    clock.enter("forward")
    phase(clock, device, "backward", 1.0)
    device.queue(0.5)
    clock.leave("forward")
    clock.leave("forward")  # one leave too many
    device.host = 10.0
    assert read(clock.cut()) == {"forward": 1.5}


def test_what_an_exception_left_open_ends_with_the_step(clock, device):
    clock.enter("forward")
    clock.enter("backward")
    clock.cut()
    step(clock, device)
    device.host = 10.0
    assert read(clock.cut()) == {"forward": 1.0, "backward": 2.0, "optimizer": 0.5}


def test_events_are_used_again(clock, device):
    for _ in range(5):
        step(clock, device, micro_batches=2)
        phase(clock, device, "evaluation", 1.0, host=1.0)
        device.host += 20.0
        assert clock.cut().read() is not None
    # Two per phase and micro-batch and two of the evaluation; three of those are carried into the next step.
    assert len(device.events) == 2 * 5 + 2 + 3


def test_times_that_are_read_late_have_events_of_their_own(clock, device):
    held = []
    for _ in range(3):
        step(clock, device)
        held.append(clock.cut())
    assert [times.ready() for times in held] == [False] * 3
    device.host = 7.0
    assert [times.ready() for times in held] == [True, True, False]
    device.host = 100.0
    assert [read(times)["forward"] for times in held] == [1.0] * 3
    assert len(device.events) == 3 * 6


def test_a_device_that_never_gets_there_runs_out_of_events_and_of_times(device):
    clock = DeviceClock(EventPool(device.event, most=9))
    device.stuck = True
    step(clock, device)
    first = clock.cut()
    step(clock, device)
    second = clock.cut()
    device.host = 1000.0
    assert first.read() is None
    assert len(device.events) == 9
    device.stuck = False
    assert read(first) == {"forward": 1.0, "backward": 2.0, "optimizer": 0.5}
    assert second.ready()
    assert second.read() is None  # the events sufficed for half of it
    step(clock, device)
    device.host = 2000.0
    assert clock.cut().read() is None  # five came back, one of six is missing


def test_a_device_that_failed_tells_nothing(clock, device, monkeypatch):
    step(clock, device)
    times = clock.cut()

    def fail(self):
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr("fake_device.Event.query", fail)
    assert times.ready()
    assert times.read() is None


def test_what_the_computing_stream_waits_for_other_ranks_is_communication(clock, device):
    clock.enter("forward")
    clock.leave("forward")
    phase(clock, device, "communication", 0.25)  # buffers
    phase(clock, device, "forward", 1.0)
    phase(clock, device, "backward", 2.0)
    phase(clock, device, "communication", 0.75)  # gradients
    clock.leave("backward")  # of the host, which has ended on the device
    phase(clock, device, "optimizer", 0.5)
    times = clock.cut()
    device.host = 9.0
    assert read(times) == {"forward": 1.0, "communication": 1.0, "backward": 2.0, "optimizer": 0.5}
