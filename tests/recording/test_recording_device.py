"""Time and memory of a device whose work, clock and allocator are replayed."""

import logging
import time

import pytest
import torch
from fake_device import Device
from hand_clock import lines, recorder_of

from hf_efficient.recording import device as device_module
from hf_efficient.recording import meters as memory_module
from hf_efficient.recording.device import DeviceWatch, PhasePeaks, watch_device
from hf_efficient.recording.meters import device_peaks, keep_device_peaks
from hf_efficient.records.steps import StepMemory

ALONE = {"forward": 1.0, "backward": 2.0, "optimizer": 0.5}


@pytest.fixture
def clock(device):
    return DeviceWatch(device.event)


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


def cut(clock):
    return clock.cut()[0]


def read(times):
    assert times.ready()
    return {name: pytest.approx(value) for name, value in (times.read() or {}).items()}


def test_a_step_is_read_once_the_device_has_done_it(clock, device):
    step(clock, device)
    times = cut(clock)
    assert (times.ready(), times.read()) == (False, None)
    device.host = 3.49
    assert not times.ready()
    device.host = 3.5
    assert read(times) == ALONE


def test_a_device_that_has_nothing_to_do_waits_and_one_that_is_behind_does_not(clock, device):
    step(clock, device)
    first = cut(clock)
    step(clock, device)  # queued while the device is still at the first one's forward
    second = cut(clock)
    device.host = 9.0  # the device was done at 7
    step(clock, device)
    third = cut(clock)
    device.host = 100.0
    assert read(first) == ALONE
    assert [read(second), read(third)] == [{"exposed_wait": wait, **ALONE} for wait in (0.0, 2.0)]


def test_an_evaluation_and_a_save_in_between_are_no_wait(clock, device):
    step(clock, device)
    device.host = 4.0  # idle since 3.5
    phase(clock, device, "evaluation", 10.0, host=10.0)
    device.host += 0.25  # at 14.25
    phase(clock, device, "checkpointing", 0.0, host=3.0)
    clock.cut()
    device.host += 0.125  # at 17.375
    step(clock, device)
    times = cut(clock)
    device.host = 100.0
    assert read(times)["exposed_wait"] == pytest.approx(0.5 + 0.25 + 0.125)


def test_the_optimizer_goes_on_from_clipping_to_its_step(clock, device):
    phase(clock, device, "optimizer", 0.5)
    phase(clock, device, "optimizer", 0.0, host=2.0)
    phase(clock, device, "optimizer", 0.25)
    device.host = 10.0
    # One interval: half a second of work, idle until the host is there at 2, a quarter.
    assert read(cut(clock)) == {"optimizer": 2.25}
    assert len(device.events) == 2


def test_a_phase_inside_another_is_part_of_it_and_one_left_open_ends_with_the_step(clock, device):
    clock.enter("forward")
    phase(clock, device, "backward", 1.0)
    device.queue(0.5)
    clock.leave("forward")
    clock.leave("forward")  # one leave too many
    device.host = 10.0
    assert read(cut(clock)) == {"forward": 1.5}
    clock.enter("forward")
    clock.enter("backward")
    clock.cut()
    step(clock, device)
    device.host = 20.0
    assert read(cut(clock)) == ALONE


def test_a_device_that_failed_tells_nothing(clock, device, monkeypatch):
    step(clock, device)
    times = cut(clock)

    def fail(self):
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr("fake_device.Event.query", fail)
    assert (times.ready(), times.read()) == (True, None)


def test_what_the_computing_stream_waits_for_other_ranks_is_communication(clock, device):
    clock.enter("forward")
    clock.leave("forward")
    phase(clock, device, "communication", 0.25)  # buffers
    phase(clock, device, "forward", 1.0)
    phase(clock, device, "backward", 2.0)
    phase(clock, device, "communication", 0.75)  # gradients
    clock.leave("backward")  # of the host, which has ended on the device
    phase(clock, device, "optimizer", 0.5)
    times = cut(clock)
    device.host = 9.0
    assert read(times) == {"forward": 1.0, "communication": 1.0, "backward": 2.0, "optimizer": 0.5}


class Allocator:
    """Keeps books as torch's CUDA allocator does; holds on to the most that it ever had."""

    def __init__(self):
        self.current = self.peak = self.reserved = self.reserved_peak = self.retries = 0
        self.now = 0

    def change(self, by):
        self.current += by
        self.peak = max(self.peak, self.current)
        self.reserved = max(self.reserved, self.current)
        self.reserved_peak = max(self.reserved_peak, self.reserved)

    def use(self, size):
        """Allocate for a moment."""
        self.change(size)
        self.change(-size)

    def release_cache(self):
        self.reserved = self.current
        self.retries += 1

    def read(self):
        self.now += 10
        return {
            "allocated_bytes": {"all": {"current": self.current, "peak": self.peak}},
            "reserved_bytes": {"all": {"current": self.reserved, "peak": self.reserved_peak}},
            "num_alloc_retries": self.retries,
        }

    def reset(self):
        self.peak, self.reserved_peak = self.current, self.reserved


@pytest.fixture
def allocator():
    return Allocator()


@pytest.fixture
def kept():
    return []


@pytest.fixture
def phase_peaks(allocator, kept, monkeypatch):
    monkeypatch.setattr(torch.cuda.memory, "memory_stats_as_nested_dict", lambda index: allocator.read())
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda index: allocator.reset())
    monkeypatch.setattr(device_module, "keep_device_peaks", lambda index, *both: kept.append(both))
    allocator.change(100)  # the model
    allocator.use(900)  # its conversion, before training
    return PhasePeaks(0, lambda: allocator.now)


def allocate(phase_peaks, allocator, forward=50, backward=80, optimizer=20):
    phase_peaks.enter("data_wait")  # allocates nothing worth a look
    phase_peaks.enter("forward")
    allocator.use(forward)
    phase_peaks.enter("backward")
    allocator.use(backward)
    phase_peaks.enter("optimizer")
    allocator.use(optimizer)
    phase_peaks.enter("optimizer")
    allocator.now += 1_000_000


def test_a_step_by_hand(phase_peaks, allocator, kept):
    allocate(phase_peaks, allocator)
    allocator.change(7)  # the optimizer's state stays
    assert phase_peaks.cut() == StepMemory(180, 1000, {"forward": 150, "backward": 180, "optimizer": 120}, 0)
    assert kept[0] == (1000, 1000)  # what was before the first allocate
    assert max(allocated for allocated, _ in kept[1:]) == 180
    allocate(phase_peaks, allocator, forward=60)
    assert phase_peaks.cut() == StepMemory(187, 1000, {"forward": 167, "backward": 187, "optimizer": 127}, 0)


def test_micro_batches_an_evaluation_and_what_lies_outside(phase_peaks, allocator):
    allocator.use(500)  # a callback at the beginning of the allocate
    allocate(phase_peaks, allocator, forward=10)
    allocator.release_cache()
    allocate(phase_peaks, allocator, forward=30, backward=40)
    phase_peaks.enter("evaluation")
    allocator.use(300)
    phases = {"forward": 130, "backward": 180, "optimizer": 120}
    assert phase_peaks.cut() == StepMemory(600, 1000, {**phases, "evaluation": 400}, allocation_retries=1)
    allocate(phase_peaks, allocator)  # after the retry the cache was smaller
    assert phase_peaks.cut() == StepMemory(180, 400, {**phases, "forward": 150}, 1)


def test_short_steps_are_looked_at_less_often(phase_peaks, allocator, kept):
    """A allocate's four looks take 40, so that it must be 20,000 until the next allocate that is looked at."""

    def short(use):
        allocate(phase_peaks, allocator, backward=use)
        allocator.now -= 1_000_000 - 8_000
        return phase_peaks.cut()

    assert short(80) is not None
    assert [short(200), short(201)] == [None, None]  # they end after 16,000 and 24,000
    memory = short(60)
    # Nothing of those in between.
    assert (memory.phase_peak_allocated_bytes["backward"], memory.peak_allocated_bytes) == (160, 160)
    assert max(allocated for allocated, _ in kept[1:]) == 100 + 201  # which the run's peak holds all the same


class SeenPeaks:
    """Tells which phases it was told of."""

    def __init__(self):
        self.seen = []

    def enter(self, name):
        self.seen.append(name)

    def cut(self):
        seen, self.seen = self.seen, []
        return StepMemory(len(seen), 0, dict.fromkeys(seen, 1))


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def watch(device):
    return DeviceWatch(device.event, SeenPeaks())


def record_step(recorder, device, number):
    recorder.next_step()
    recorder.add_micro_batch()
    for name, work in (("forward", 1.0), ("backward", 2.0)):
        with recorder.phase(name):
            device.queue(work)
    recorder.mark("optimizer")
    device.queue(0.5)
    recorder.mark(None)
    recorder.step_done(number, None)


def test_records_have_what_the_device_did(device, watch, tmp_path):
    recorder = recorder_of(time.perf_counter_ns, tmp_path, watch)
    record_step(recorder, device, 1)
    with recorder.phase("evaluation", opaque=True), recorder.phase("host_to_device"):
        device.queue(4.0)
    record_step(recorder, device, 2)
    recorder.end_loop()
    device.host = 100.0
    recorder.end()
    first, second = lines(tmp_path / "steps.jsonl")
    assert first["device_seconds"] == pytest.approx(ALONE)
    assert second["device_seconds"] == pytest.approx({"exposed_wait": 0.0, **ALONE})
    assert list(first["memory"]["phase_peak_allocated_bytes"]) == ["forward", "backward", "optimizer", "evaluation"]
    assert list(second["memory"]["phase_peak_allocated_bytes"]) == ["forward", "backward", "optimizer"]


def test_records_wait_for_the_device_but_not_for_ever(device, watch, tmp_path):
    recorder = recorder_of(time.perf_counter_ns, tmp_path, watch)
    device.stuck = True
    for number in range(1, 71):
        record_step(recorder, device, number)
    recorder.timeline.files.fold()
    assert len(recorder.timeline.files._waiting) == 64  # the step under way is the seventieth
    device.stuck = False
    device.host = 1000.0
    recorder.end()
    found = lines(tmp_path / "steps.jsonl")
    assert [line["step"] for line in found] == list(range(1, 71))
    assert ["device_seconds" in line for line in found] == [False] * 5 + [True] * 65


def test_a_fault_is_one_warning_and_the_steps_go_on(device, tmp_path, caplog):
    def fail():
        raise OSError("no more events")

    recorder = recorder_of(time.perf_counter_ns, tmp_path, DeviceWatch(fail, SeenPeaks()))
    for number in (1, 2):
        record_step(recorder, device, number)
    recorder.end()
    said = "Time and memory of the device are no longer recorded, because of a fault; training continues."
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(logging.WARNING, said)]
    assert not any({"device_seconds", "memory"} & set(line) for line in lines(tmp_path / "steps.jsonl"))


def test_no_watch_without_cuda():
    assert watch_device(torch.device("cpu")) is None
    if not torch.cuda.is_initialized():
        assert watch_device(torch.device("cuda", 0)) is None


RETRIES = "device_allocation_retries"
KINDS = {"allocated": 1000, "reserved": 2000}


@pytest.fixture
def cuda(monkeypatch):
    """The books of two CUDA devices, the first of which is the current one."""
    peaks = [{f"{kind}_bytes": {"all": {"peak": at + index}} for kind, at in KINDS.items()} for index in (0, 1)]
    books = [{**of_one, "num_alloc_retries": 3} for of_one in peaks]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda.memory, "memory_stats_as_nested_dict", lambda index=None: books[index or 0])
    monkeypatch.setattr(memory_module, "_kept", {})
    return books


def test_the_peaks_of_the_run_outlive_that_they_are_set_back(cuda):
    assert device_peaks() == {**{f"device_peak_{kind}_bytes": at for kind, at in KINDS.items()}, RETRIES: 3}
    keep_device_peaks(0, 1000, 2000)
    keep_device_peaks(1, 9000, 9000)
    cuda[0]["allocated_bytes"]["all"]["peak"] = 400
    cuda[0]["reserved_bytes"]["all"]["peak"] = 2500
    assert list(device_peaks().values()) == [1000, 2500, 3]
    keep_device_peaks(0, 400, 2500)
    cuda[0]["reserved_bytes"]["all"]["peak"] = 100
    assert device_peaks()["device_peak_reserved_bytes"] == 2500


def test_an_allocator_without_books(cuda, monkeypatch):
    def refuse(index=None):
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.")

    monkeypatch.setattr(torch.cuda.memory, "memory_stats_as_nested_dict", refuse)
    assert device_peaks() == {}
    watch = watch_device(torch.device("cuda", 1))
    assert watch._peaks is None
