"""The device's part in the records of the steps, by a device and an allocator that are replayed."""

from __future__ import annotations

import json
import logging
import time

import pytest
import torch
from fake_device import Device
from hand_clock import recorder_of

from hf_efficient.recording import memory as memory_module
from hf_efficient.recording.device import DeviceClock, DeviceWatch, EventPool, watch_device
from hf_efficient.recording.memory import device_peaks, keep_device_peaks
from hf_efficient.records.steps import StepMemory


class Peaks:
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
    return DeviceWatch(DeviceClock(EventPool(device.event)), Peaks())


def lines(folder):
    return [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]


def step(recorder, device, number):
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
    step(recorder, device, 1)
    with recorder.phase("evaluation", opaque=True), recorder.phase("host_to_device"):
        device.queue(4.0)
    step(recorder, device, 2)
    recorder.end_loop()
    device.host = 100.0
    recorder.end()
    alone = {"forward": 1.0, "backward": 2.0, "optimizer": 0.5}
    first, second = lines(tmp_path)
    assert first["device_seconds"] == pytest.approx(alone)
    assert second["device_seconds"] == pytest.approx({"exposed_wait": 0.0, **alone})
    assert list(first["memory"]["phase_peak_allocated_bytes"]) == ["forward", "backward", "optimizer", "evaluation"]
    assert list(second["memory"]["phase_peak_allocated_bytes"]) == ["forward", "backward", "optimizer"]


def test_records_wait_for_the_device_but_not_for_ever(device, watch, tmp_path):
    recorder = recorder_of(time.perf_counter_ns, tmp_path, watch)
    device.stuck = True
    for number in range(1, 71):
        step(recorder, device, number)
    recorder.timeline.files.fold()
    assert len(recorder.timeline.files._waiting) == 64  # the step under way is the seventieth
    device.stuck = False
    device.host = 1000.0
    recorder.end()
    found = lines(tmp_path)
    assert [line["step"] for line in found] == list(range(1, 71))
    assert ["device_seconds" in line for line in found] == [False] * 5 + [True] * 65


def test_what_an_abandoned_step_had_begun_is_forgotten(device, watch, tmp_path):
    recorder = recorder_of(time.perf_counter_ns, tmp_path, watch)
    recorder.next_step()
    with recorder.phase("forward"):
        device.queue(9.0)
    recorder.abandon_step()
    step(recorder, device, 1)
    device.host = 100.0
    recorder.end()
    (line,) = lines(tmp_path)
    assert line["device_seconds"] == pytest.approx(
        {"exposed_wait": 0.0, "forward": 1.0, "backward": 2.0, "optimizer": 0.5}
    )


def test_a_fault_is_one_warning_and_the_steps_go_on(device, tmp_path, caplog):
    def fail():
        raise OSError("no more events")

    recorder = recorder_of(time.perf_counter_ns, tmp_path, DeviceWatch(DeviceClock(EventPool(fail)), Peaks()))
    for number in (1, 2):
        step(recorder, device, number)
    recorder.end()
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, "Time and memory of the device are no longer told, because of a fault; training goes on.")
    ]
    assert [("device_seconds" in line, "memory" in line) for line in lines(tmp_path)] == [(False, False)] * 2


def test_no_watch_without_cuda():
    assert watch_device(torch.device("cpu")) is None
    if not torch.cuda.is_initialized():
        assert watch_device(torch.device("cuda", 0)) is None


@pytest.fixture
def cuda(monkeypatch):
    """The books of two CUDA devices, the first of which is the current one."""
    books = {
        index: {
            "allocated_bytes": {"all": {"peak": 1000 + index}},
            "reserved_bytes": {"all": {"peak": 2000 + index}},
            "num_alloc_retries": 3,
        }
        for index in (0, 1)
    }
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda.memory, "memory_stats_as_nested_dict", lambda index=None: books[index or 0])
    monkeypatch.setattr(memory_module, "_kept", {})
    return books


def test_the_peaks_of_the_run_outlive_that_they_are_set_back(cuda):
    assert device_peaks() == {
        "device_peak_allocated_bytes": 1000,
        "device_peak_reserved_bytes": 2000,
        "device_allocation_retries": 3,
    }
    keep_device_peaks(0, 1000, 2000)
    keep_device_peaks(1, 9000, 9000)
    cuda[0]["allocated_bytes"]["all"]["peak"] = 400
    cuda[0]["reserved_bytes"]["all"]["peak"] = 2500
    assert device_peaks()["device_peak_allocated_bytes"] == 1000
    assert device_peaks()["device_peak_reserved_bytes"] == 2500
    keep_device_peaks(0, 400, 2500)
    cuda[0]["reserved_bytes"]["all"]["peak"] = 100
    assert device_peaks()["device_peak_reserved_bytes"] == 2500


def test_an_allocator_without_books(cuda, monkeypatch):
    def refuse(index=None):
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.")

    monkeypatch.setattr(torch.cuda.memory, "memory_stats_as_nested_dict", refuse)
    assert device_peaks() == {}
    watch = watch_device(torch.device("cuda", 1))
    assert watch is not None
    assert watch._peaks is None


def test_the_peaks_of_the_device_that_trains_are_set_back_after_they_were_kept(cuda, monkeypatch):
    reset = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    assert watch_device(torch.device("cuda", 1)) is not None
    assert reset == [1]
    assert memory_module._kept == {1: (1001, 2001)}
    left_alone = watch_device(torch.device("cuda", 1), memory=False)
    assert left_alone is not None
    assert left_alone.cut()[1] is None
    assert reset == [1]
