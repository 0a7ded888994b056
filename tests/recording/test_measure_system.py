"""The samples of a process, by a clock that is set by hand; and what happens when a probe fails."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
from replayed_nvml import replay

from hf_efficient.recording import system as module
from hf_efficient.recording.meters import EnergyMeter, Found
from hf_efficient.recording.system import SystemSampler


class Hand:
    at = 10.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def hand():
    return Hand()


@pytest.fixture
def sampler(hand, monkeypatch):
    """``sampler(*host meters, devices=...)``: one that has taken its first sample."""

    def build(*meters: EnergyMeter, devices=()) -> Sampled:
        monkeypatch.setattr(module, "host_meters", lambda: Found(list(meters)))
        monkeypatch.setattr(module, "cuda_devices", lambda _current: list(devices))
        return Sampled(SystemSampler(4, hand))

    return build


class Sampled:
    """A sampler, and its samples so far."""

    def __init__(self, sampler):
        self.sampler = sampler
        self.samples = [sampler.sample()]

    @property
    def joules(self):
        return self.sampler.joules

    @property
    def energy_joules(self):
        return self.sampler.energy_joules


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


def rounds(one, hand, count: int, seconds: float = 1.0) -> list[dict]:
    for _ in range(count):
        hand.at += seconds
        one.samples.append(one.sampler.sample())
    return one.samples


def warnings_of(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_sample(sampler, hand):
    one = sampler(meter("CPU package 0", counting(262_100.0, 262_130.0, 20.0), range_joules=262_150.0))
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


def test_rss_is_the_kernels(sampler, hand):
    if not Path("/proc/self/statm").exists():
        pytest.skip("no /proc")
    one = sampler()
    block = bytearray(64 * 2**20)
    block[:: 2**12] = b"x" * len(block[:: 2**12])
    *_, sample = rounds(one, hand, 1)
    status = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in status if line.startswith("VmRSS:"))
    assert abs(int(line.split()[1]) * 1024 - sample["rss_bytes"]) < 4 * 2**20
    (line,) = (line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:"))
    assert abs(int(line.split()[1]) * 1024 - sample["host_available_bytes"]) < 2**29
    assert len(block) == 64 * 2**20


def test_a_gpu_by_its_recording(sampler, hand, monkeypatch):
    nvml = replay(monkeypatch, "counter")
    found = rounds(sampler(devices=[nvml.device()]), hand, 3)
    assert [line["joules"]["GPU 3"] for line in found] == [81_234_000.0, 81_234_400.0, 81_235_000.0, 81_235_800.0]
    assert [line.get("watts", {}).get("GPU 3") for line in found] == [None, 400.0, 600.0, 800.0]
    assert nvml.asked.count("nvmlInit") == 2  # by its meter and by its load, whatever the samples


def test_a_gpu_that_is_held_back_says_why(sampler, hand, monkeypatch):
    nvml = replay(monkeypatch, "throttled")
    first, second = rounds(sampler(devices=[nvml.device()]), hand, 1)
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


def test_a_probe_that_fails_is_told_of_once_and_the_others_answer(sampler, hand, monkeypatch, caplog):
    monkeypatch.setattr("hf_efficient.recording.probes.DisksProbe.read", lambda self, at: 1 / 0)
    found = rounds(sampler(), hand, 2)
    assert "busy_cores" in found[2]["host"]
    assert [line.get("faults") for line in found] == [
        {"load of the disks": "ZeroDivisionError: division by zero"},
        None,
        None,
    ]
    assert len(warnings_of(caplog)) == 1


def test_power_samples_are_told_as_power(sampler, hand, monkeypatch):
    one = sampler(devices=[replay(monkeypatch, "power_only").device()])
    found = rounds(one, hand, 2)
    assert [line["watts"]["GPU 3"] for line in found] == [100.0, 200.0, 200.0]
    assert not any("joules" in line for line in found)
    assert one.joules == 350.0  # 1 s at a mean of 150 W, 1 s at 200 W


def test_a_gpu_that_is_lost_is_one_warning_and_asked_again(sampler, hand, monkeypatch, caplog):
    one = sampler(devices=[replay(monkeypatch, "lost_for_a_while").device()])
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


def test_nonsense_is_no_reading(sampler, hand, monkeypatch, caplog):
    found = rounds(sampler(devices=[replay(monkeypatch, "power_nonsense").device()]), hand, 2)
    assert [line.get("watts") for line in found] == [{"GPU 3": 100.0}, None, {"GPU 3": 100.0}]
    assert found[1]["faults"] == {"GPU 3": "ValueError: it reads 4.29497e+06 watts"}
    assert len(warnings_of(caplog)) == 1


def test_a_gpu_without_nvml_is_one_warning(sampler, hand, monkeypatch, caplog):
    found = rounds(sampler(devices=[replay(monkeypatch, "no_driver").device()]), hand, 12)
    assert found[0]["faults"] == {"GPU 0": "NVML: Driver Not Loaded"}
    assert found[0]["meters"]["GPU 0"]["source"] == "estimate"
    assert all("joules" in line for line in found)
    assert len(warnings_of(caplog)) == 1


def test_several_faults_are_one_warning_and_all_in_the_records(sampler, hand, caplog):
    one = sampler(meter("a", counting(RuntimeError("one"))), meter("b", counting(1.0, OSError("two"))))
    first, second = rounds(one, hand, 1)
    assert first["faults"] == {"a": "RuntimeError: one"}
    assert second["faults"] == {"b": "OSError: two"}
    assert len(warnings_of(caplog)) == 1


def test_meters_that_cannot_be_looked_for(sampler, hand, monkeypatch, caplog):
    def broken(_current):
        raise RuntimeError("CUDA is gone")

    one = sampler()
    monkeypatch.setattr(module, "cuda_devices", broken)
    found = rounds(one, hand, 10)
    assert found[10]["faults"] == {"GPU": "RuntimeError: CUDA is gone"}
    assert all("rss_bytes" in line for line in found)
    assert len(warnings_of(caplog)) == 1


def test_a_device_that_comes_later_is_found(sampler, hand, monkeypatch):
    one = sampler()
    nvml = replay(monkeypatch, "counter")
    monkeypatch.setattr(module, "cuda_devices", lambda _current: [nvml.device()])
    found = rounds(one, hand, 10)
    assert ["joules" in line for line in found] == [False] * 10 + [True]
    assert list(found[10]["meters"]) == ["GPU 3"]


def test_what_cannot_be_gone_on_with_is_one_warning_and_the_end(sampler, hand, caplog):
    one = sampler(meter("a", counting(SystemExit("dead"))))
    assert rounds(one, hand, 1) == [None, None]
    assert warnings_of(caplog) == [
        "Memory and energy of this process are no longer sampled (SystemExit: dead). "
        "Training goes on; the account names what is missing."
    ]


def test_the_wall_clock_does_not_matter(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: -1e9)
    one = SystemSampler(0, time.perf_counter)
    found = [one.sample() for _ in range(3)]
    times = [line["at_seconds"] for line in found]
    assert times == sorted(times)
    assert "faults" not in found[0]
