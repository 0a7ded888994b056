"""The samples of a process, by a clock and counters that are set by hand; and what happens when a probe fails."""

import logging
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from hand_clock import SECOND
from replayed_nvml import replay

from hf_efficient.recording import probes
from hf_efficient.recording import system as module
from hf_efficient.recording.meters import EnergyMeter
from hf_efficient.recording.system import SystemSampler


@pytest.fixture
def sampler(hand, monkeypatch):
    """``sampler(*host meters, devices=...)``: one that has taken its first sample."""

    def build(*meters: EnergyMeter, devices=()) -> Sampled:
        monkeypatch.setattr(module, "host_meters", lambda: list(meters))
        monkeypatch.setattr(module, "cuda_devices", lambda _current: list(devices))
        return Sampled(SystemSampler(4, lambda: hand.at / SECOND))

    return build


class Sampled:
    """A sampler, and its samples so far."""

    def __init__(self, sampler):
        self.sampler = sampler
        self.samples = [sampler.sample()]

    joules = property(lambda self: self.sampler.joules)


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
        hand.wait(seconds)
        one.samples.append(one.sampler.sample())
    return one.samples


def warnings_of(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_sample(sampler, hand):
    one = sampler(meter("CPU package 0", counting(262_100.0, 262_130.0, 20.0), range_joules=262_150.0))
    first, second, third = rounds(one, hand, 2, seconds=2.0)
    assert (first["schema_version"], first["process"], first["at_seconds"]) == (1, 4, 1000.0)
    assert first["joules"] == {"CPU package 0": 262_100.0}
    meter_facts = {"source": "rapl", "unit": "joules", "range_joules": 262_150.0}
    assert first["meters"]["CPU package 0"].items() >= meter_facts.items()
    assert "watts" not in first
    assert second["at_seconds"] == first["at_seconds"] + 2
    assert (second["joules"], second["watts"]) == ({"CPU package 0": 262_130.0}, {"CPU package 0": 15.0})
    assert third["watts"] == {"CPU package 0": 20.0}  # 40 J over the wrap: 262,150 - 262,130 + 20
    assert not {"meters", "faults", "device_allocated_bytes"} & set(second)
    assert one.joules == 70.0


def test_a_gpu_by_its_recording(sampler, hand, monkeypatch):
    nvml = replay(monkeypatch, "counter")
    found = rounds(sampler(devices=[nvml.device()]), hand, 3)
    assert [line["joules"]["GPU 3"] for line in found] == [81_234_000.0, 81_234_400.0, 81_235_000.0, 81_235_800.0]
    assert [line.get("watts", {}).get("GPU 3") for line in found] == [None, 400.0, 600.0, 800.0]
    assert nvml.asked.count("nvmlInit") == 2  # by its meter and by its load, whatever the samples


def test_a_gpu_that_is_held_back_says_why(sampler, hand, monkeypatch):
    nvml = replay(monkeypatch, "throttled")
    first, second = rounds(sampler(devices=[nvml.device()]), hand, 1)
    percent = {"utilization_percent": 98, "memory_utilization_percent": 41, "temperature_celsius": 71}
    clocks = {"sm_clock_mhz": 1980, "memory_clock_mhz": 2619}
    assert first["gpus"] == {"3": {**percent, **clocks, "memory_used_bytes": 60 * 2**30}}
    assert "throttled" not in first  # idle is no throttling
    assert (second["gpus"]["3"]["sm_clock_mhz"], second["throttled"]) == (1245, {"3": ["power_cap", "thermal"]})


def test_a_probe_that_fails_is_told_of_once_and_the_others_answer(sampler, hand, monkeypatch, caplog):
    monkeypatch.setattr("hf_efficient.recording.probes.DisksProbe.read", lambda self, at: 1 / 0)
    found = rounds(sampler(), hand, 2)
    assert "busy_cores" in found[2]["host"]
    fault = {"load of the disks": "ZeroDivisionError: division by zero"}
    assert [line.get("faults") for line in found] == [fault, None, None]
    assert len(warnings_of(caplog)) == 1


def test_power_samples_are_told_as_power(sampler, hand, monkeypatch):
    one = sampler(devices=[replay(monkeypatch, "power_only").device()])
    found = rounds(one, hand, 2)
    assert [line["watts"]["GPU 3"] for line in found] == [100.0, 200.0, 200.0]
    assert found[0]["meters"]["GPU 3"]["note"] == "power samples, NVIDIA H100 80GB HBM3"
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
        "Training continues; the account names what is missing."
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
        "Training continues; the account names what is missing."
    ]


def test_a_real_child_is_found_with_and_without_proc():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in probes.children_of(os.getpid())
        assert child.pid in probes.children_of(os.getpid(), Path("/nowhere"))
        assert sum(probes.cpu_seconds_of([child.pid])) >= 0.0
        child.communicate(b"\n")


def test_the_other_ranks_are_the_launchers_other_children(monkeypatch):
    monkeypatch.setattr(probes, "children_of", lambda pid: [os.getpid(), 4242] if pid == os.getppid() else [])
    assert probes.siblings({"LOCAL_WORLD_SIZE": "2"}) == [4242]
    for alone in ({}, {"LOCAL_WORLD_SIZE": "1"}, {"LOCAL_WORLD_SIZE": "many"}):
        assert probes.siblings(alone) == []


Times = namedtuple("Times", ["user", "system", "idle", "iowait", "steal"])
Disk = namedtuple("Disk", ["read_count", "write_count", "read_bytes", "write_bytes", "read_time", "write_time"])
Card = namedtuple("Card", ["bytes_recv", "bytes_sent"])


@pytest.fixture
def machine(monkeypatch):
    """Two cores, a process with two children and one other rank; set their CPU seconds in the dictionary."""
    spent = {"own": (0.0, 0.0), "children": (0.0, 0.0), "ranks": (0.0, 0.0), "cores": [Times(0, 0, 0, 0, 0)] * 2}
    names = {1: "own", 2: "children", 3: "children", 4: "ranks"}
    monkeypatch.setattr(probes.os, "getpid", lambda: 1)
    monkeypatch.setattr(probes, "children_of", lambda pid: [2, 3] if pid == 1 else [])
    monkeypatch.setattr(probes, "siblings", lambda: [4])
    monkeypatch.setattr(probes, "cpu_seconds_of", lambda pids: spent[names[pids[0]]] if pids else (0.0, 0.0))
    monkeypatch.setattr(probes.psutil, "cpu_times", lambda percpu: spent["cores"])
    monkeypatch.setattr(probes, "core_wait_of", lambda thread: lambda: spent.get("wait", 0.0))
    return spent


def test_who_keeps_the_cores_busy(machine):
    probe = probes.CoresProbe()
    assert "busy_cores" not in probe.read(100.0)
    machine |= {"own": (1.0, 0.25), "children": (0.5, 0.0), "ranks": (0.25, 0.125), "wait": 0.5}
    machine["cores"] = [Times(1.5, 0.25, 0.25, 0, 0), Times(1.0, 0.0, 0.5, 0.25, 0.25)]
    found = probe.read(102.0)
    assert {name: found[name] for name in found if name.endswith(("cores", "core", "wait"))} == {
        "process_cores": 0.5,
        "children_cores": 0.375,  # half a second of their own, and a quarter of one that has ended
        "ranks_cores": 0.188,
        "busy_cores": 1.375,
        "other_cores": 0.312,
        "stolen_cores": 0.125,
        "main_thread_core_wait": 0.25,
    }


def test_disks(monkeypatch):
    told = [Disk(10, 0, 0, 0, 5, 0), Disk(30, 20, 4096, 8192, 45, 40)]
    monkeypatch.setattr(probes.psutil, "disk_io_counters", lambda nowrap: told.pop(0))
    own = [(0, 0), (1000, 500)]
    monkeypatch.setattr(probes, "io_bytes_of", lambda pids: own.pop(0))
    probe = probes.DisksProbe()
    assert probe.read(0.0) == {}
    assert probe.read(2.0) == {
        "disk_read_bytes_per_second": 2048.0,
        "disk_write_bytes_per_second": 4096.0,
        "disk_reads_per_second": 10.0,
        "disk_writes_per_second": 10.0,
        "disk_latency_milliseconds": 2.0,  # 80 ms for 40 requests
        "read_bytes_per_second": 500.0,
        "write_bytes_per_second": 250.0,
    }


def test_the_network_without_what_leads_back_here(monkeypatch):
    told = [{"lo": Card(0, 0), "eth0": Card(0, 0), "eth1": Card(0, 0)}]
    told.append({"lo": Card(999, 999), "eth0": Card(10, 20), "eth1": Card(30, 40)})
    monkeypatch.setattr(probes.psutil, "net_io_counters", lambda pernic, nowrap: told.pop(0))
    probe = probes.NetworkProbe()
    assert probe.read(0.0) == {}
    assert probe.read(4.0) == {"network_received_bytes_per_second": 10.0, "network_sent_bytes_per_second": 15.0}


def test_rises_per_second_but_not_of_a_counter_that_fell_or_is_new():
    rates = probes.Rates()
    assert rates.of(0.0, {"a": 100}) == {}
    assert rates.of(1.0, {"a": 50, "b": 7}) == {}
    assert rates.of(2.0, {"a": 60, "b": 9}) == {"a": 10, "b": 2}
