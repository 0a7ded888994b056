"""The samples that a thread takes, by a clock that is set by hand; and what happens when a probe fails."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path

import pytest
from replayed_nvml import replay
from waiting import wait_for, wait_for_line

from hf_efficient.recording import system as module
from hf_efficient.recording.meters import EnergyMeter, Found
from hf_efficient.recording.system import SystemStream


class Hand:
    at = 10.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def hand():
    return Hand()


@pytest.fixture
def stream(tmp_path, hand, monkeypatch):
    """``stream(*host meters, devices=...)``: a stream whose rounds come only when they are called for."""
    made = []

    def build(*meters: EnergyMeter, devices=()) -> SystemStream:
        monkeypatch.setattr(module, "host_meters", lambda: Found(list(meters)))
        monkeypatch.setattr(module, "cuda_devices", lambda _current: list(devices))
        one = SystemStream(tmp_path / "system.jsonl", 4, hand, flush_seconds=1000)
        made.append(one)
        wait_for(lambda: one._broken or (one.path.exists() and one.path.read_bytes().endswith(b"\n")))
        return one

    yield build
    for one in made:
        one.close()


def meter(name: str, read, unit: str = "joules", range_joules: float | None = None) -> EnergyMeter:
    return EnergyMeter(name, name, "rapl", unit, read, range_joules)


def counting(*values):
    """Reads these one after another; an exception among them is raised."""
    left = list(values)

    def read():
        value = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(value, BaseException):
            raise value
        return value

    return read


def rounds(stream, hand, count: int, seconds: float = 1.0) -> list[dict]:
    for _ in range(count):
        hand.at += seconds
        stream._write_batch(last=False)
    return samples(stream.path)


def samples(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def warnings_of(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_sample(stream, hand):
    one = stream(meter("CPU package 0", counting(262_100.0, 262_130.0, 20.0), range_joules=262_150.0))
    first, second, third = rounds(one, hand, 2, seconds=2.0)
    assert (first["schema_version"], first["process"], first["at_seconds"]) == (1, 4, 10.0)
    assert first["joules"] == {"CPU package 0": 262_100.0}
    assert (
        first["meters"]["CPU package 0"].items()
        >= {"source": "rapl", "unit": "joules", "range_joules": 262_150.0}.items()
    )
    assert "watts" not in first
    assert (second["at_seconds"], second["joules"], second["watts"]) == (
        12.0,
        {"CPU package 0": 262_130.0},
        {"CPU package 0": 15.0},
    )
    assert third["watts"] == {"CPU package 0": 20.0}  # 40 J over the wrap: 262,150 - 262,130 + 20
    assert not {"meters", "faults", "device_allocated_bytes"} & set(second)
    assert one.joules == 70.0


def test_rss_is_the_kernels(stream, hand):
    if not Path("/proc/self/statm").exists():
        pytest.skip("no /proc")
    one = stream()
    block = bytearray(64 * 2**20)
    block[:: 2**12] = b"x" * len(block[:: 2**12])
    *_, sample = rounds(one, hand, 1)
    status = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in status if line.startswith("VmRSS:"))
    assert abs(int(line.split()[1]) * 1024 - sample["rss_bytes"]) < 4 * 2**20
    (line,) = (line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:"))
    assert abs(int(line.split()[1]) * 1024 - sample["host_available_bytes"]) < 2**29
    assert len(block) == 64 * 2**20


def test_a_gpu_by_its_recording(stream, hand, monkeypatch):
    nvml = replay(monkeypatch, "counter")
    found = rounds(stream(devices=[nvml.device()]), hand, 3)
    assert [line["joules"]["GPU 3"] for line in found] == [81_234_000.0, 81_234_400.0, 81_235_000.0, 81_235_800.0]
    assert [line.get("watts", {}).get("GPU 3") for line in found] == [None, 400.0, 600.0, 800.0]
    assert nvml.asked.count("nvmlInit") == 2  # by its meter and by its load, whatever the samples


def test_a_gpu_that_is_held_back_says_why(stream, hand, monkeypatch):
    nvml = replay(monkeypatch, "throttled")
    first, second = rounds(stream(devices=[nvml.device()]), hand, 1)
    assert first["gpus"] == {
        "3": {
            "utilization_percent": 98,
            "memory_utilization_percent": 41,
            "memory_used_bytes": 60 * 2**30,
            "temperature_celsius": 71,
            "sm_clock_mhz": 1980,
            "memory_clock_mhz": 2619,
        }
    }
    assert "throttled" not in first  # idle is no throttling
    assert first["gpu_limits"] == {"3": {"memory_total_bytes": 80 * 2**30, "sm_clock_max_mhz": 1980}}
    assert (second["gpus"]["3"]["sm_clock_mhz"], second["throttled"]) == (1245, {"3": ["power_cap", "thermal"]})
    assert "gpu_limits" not in second


def test_a_probe_that_fails_is_told_of_once_and_the_others_answer(stream, hand, monkeypatch, caplog):
    monkeypatch.setattr("hf_efficient.recording.probes.DisksProbe.read", lambda self, at: 1 / 0)
    found = rounds(stream(), hand, 2)
    assert "busy_cores" in found[2]["host"]
    assert [line.get("faults") for line in found] == [
        {"load of the disks": "ZeroDivisionError: division by zero"},
        None,
        None,
    ]
    assert len(warnings_of(caplog)) == 1


def test_power_samples_are_told_as_power(stream, hand, monkeypatch):
    one = stream(devices=[replay(monkeypatch, "power_only").device()])
    found = rounds(one, hand, 2)
    assert [line["watts"]["GPU 3"] for line in found] == [100.0, 200.0, 200.0]
    assert not any("joules" in line for line in found)
    assert one.joules == 350.0  # 1 s at a mean of 150 W, 1 s at 200 W


def test_a_gpu_that_is_lost_is_one_warning_and_asked_again(stream, hand, monkeypatch, caplog):
    one = stream(devices=[replay(monkeypatch, "lost_for_a_while").device()])
    found = rounds(one, hand, 4)
    assert [line.get("joules", {}).get("GPU 3") for line in found] == [5000.0, 5300.0, None, None, 6200.0]
    assert found[2]["faults"] == {"GPU 3": "NVMLError_Unknown: Unknown Error"}
    assert "faults" not in found[3]
    assert found[4]["watts"] == {"GPU 3": 300.0}  # 900 J in the three seconds
    assert one.joules == 1200.0
    assert warnings_of(caplog) == [
        "GPU 3 cannot be measured (NVMLError_Unknown: Unknown Error). "
        "Training goes on; the account names what is missing."
    ]


def test_nonsense_is_no_reading(stream, hand, monkeypatch, caplog):
    found = rounds(stream(devices=[replay(monkeypatch, "power_nonsense").device()]), hand, 2)
    assert [line.get("watts") for line in found] == [{"GPU 3": 100.0}, None, {"GPU 3": 100.0}]
    assert found[1]["faults"] == {"GPU 3": "ValueError: it reads 4.29497e+06 watts"}
    assert len(warnings_of(caplog)) == 1


def test_a_gpu_without_nvml_is_one_warning(stream, hand, monkeypatch, caplog):
    found = rounds(stream(devices=[replay(monkeypatch, "no_driver").device()]), hand, 12)
    assert found[0]["faults"] == {"GPU 0": "NVML: Driver Not Loaded"}
    assert found[0]["meters"]["GPU 0"]["source"] == "estimate"
    assert all("joules" in line for line in found)
    assert len(warnings_of(caplog)) == 1


def test_several_faults_are_one_warning_and_all_in_the_records(stream, hand, caplog):
    one = stream(meter("a", counting(RuntimeError("one"))), meter("b", counting(1.0, OSError("two"))))
    first, second = rounds(one, hand, 1)
    assert first["faults"] == {"a": "RuntimeError: one"}
    assert second["faults"] == {"b": "OSError: two"}
    assert len(warnings_of(caplog)) == 1


def test_meters_that_cannot_be_looked_for(stream, hand, monkeypatch, caplog):
    def broken(_current):
        raise RuntimeError("CUDA is gone")

    one = stream()
    monkeypatch.setattr(module, "cuda_devices", broken)
    found = rounds(one, hand, 10)
    assert found[10]["faults"] == {"GPU": "RuntimeError: CUDA is gone"}
    assert all("rss_bytes" in line for line in found)
    assert len(warnings_of(caplog)) == 1


def test_a_device_that_comes_later_is_found(stream, hand, monkeypatch):
    one = stream()
    nvml = replay(monkeypatch, "counter")
    monkeypatch.setattr(module, "cuda_devices", lambda _current: [nvml.device()])
    found = rounds(one, hand, 10)
    assert ["joules" in line for line in found] == [False] * 10 + [True]
    assert list(found[10]["meters"]) == ["GPU 3"]


def test_a_thread_that_dies_is_one_warning(stream, hand, caplog):
    one = stream(meter("a", counting(SystemExit("dead"))))
    wait_for(lambda: not any(thread.name == "write system.jsonl" for thread in threading.enumerate()))
    one.wake()
    one.close()
    assert warnings_of(caplog) == [
        "Memory and energy of this process are no longer sampled (SystemExit: dead). "
        "Training goes on; the account names what is missing."
    ]
    assert not one.path.exists()
    assert not one._latch.told  # the run's files are in order


def test_a_thread_that_hangs_is_left_behind(stream, hand, monkeypatch, caplog):
    hanging, go_on = threading.Event(), threading.Event()

    def hang():
        if hanging.is_set():
            go_on.wait(20)
        return 1.0

    one = stream(meter("a", hang))
    hanging.set()
    one.close(timeout_seconds=0.1)
    one.wake()
    assert one._thread is None
    assert warnings_of(caplog) == [
        "Memory and energy of this process are no longer sampled (TimeoutError: no answer within 0.1 s). "
        "Training goes on; the account names what is missing."
    ]
    one.close()  # takes no sample by itself
    go_on.set()
    wait_for(lambda: not any(thread.name == "write system.jsonl" for thread in threading.enumerate()))
    assert len(samples(one.path)) == 1


def test_it_ends_with_a_sample_and_wakes_with_one(stream, hand):
    one = stream(meter("a", counting(1.0, 2.0, 3.0, 4.0)))
    hand.at = 11.0
    one.close()
    assert not any(thread.name == "write system.jsonl" for thread in threading.enumerate())
    hand.at = 50.0
    one.wake()
    wait_for_line(one.path, 3)
    hand.at = 51.0
    one.close()
    found = samples(one.path)
    assert [(line["at_seconds"], line["joules"]["a"]) for line in found] == [
        (10.0, 1.0),
        (11.0, 2.0),
        (50.0, 3.0),
        (51.0, 4.0),
    ]
    assert ["meters" in line for line in found] == [True, False, False, False]


def test_the_wall_clock_does_not_matter(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: -1e9)
    one = SystemStream(tmp_path / "system.jsonl", 0, time.perf_counter, flush_seconds=0.05)
    wait_for_line(one.path, 3)
    one.close()
    found = samples(one.path)
    times = [line["at_seconds"] for line in found]
    assert times == sorted(times)
    assert "faults" not in found[0]
