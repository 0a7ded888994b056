"""What the cores, disks and network do, by counters set by hand."""

from __future__ import annotations

from collections import namedtuple

import pytest

from hf_efficient.recording import probes as cores
from hf_efficient.recording import probes as disks
from hf_efficient.recording import probes as network
from hf_efficient.recording.probes import CoresProbe, DisksProbe, NetworkProbe

Times = namedtuple("Times", ["user", "system", "idle", "iowait", "steal"])
Disk = namedtuple("Disk", ["read_count", "write_count", "read_bytes", "write_bytes", "read_time", "write_time"])
Card = namedtuple("Card", ["bytes_recv", "bytes_sent"])


@pytest.fixture
def machine(monkeypatch):
    """Two cores, a process with two children and one other rank; set their CPU seconds in the dictionary."""
    spent = {"own": (0.0, 0.0), "children": (0.0, 0.0), "ranks": (0.0, 0.0), "cores": [Times(0, 0, 0, 0, 0)] * 2}
    names = {1: "own", 2: "children", 3: "children", 4: "ranks"}
    monkeypatch.setattr(cores.os, "getpid", lambda: 1)
    monkeypatch.setattr(cores, "children_of", lambda pid: [2, 3] if pid == 1 else [])
    monkeypatch.setattr(cores, "siblings", lambda: [4])
    monkeypatch.setattr(cores, "cpu_seconds_of", lambda pids: spent[names[pids[0]]] if pids else (0.0, 0.0))
    monkeypatch.setattr(cores.psutil, "cpu_times", lambda percpu: spent["cores"])
    monkeypatch.setattr(cores, "core_wait_of", lambda thread: lambda: spent.get("wait", 0.0))
    return spent


def test_who_keeps_the_cores_busy(machine):
    probe = CoresProbe()
    assert "busy_cores" not in probe.read(100.0)
    assert probe.core_loads == []
    machine |= {"own": (1.0, 0.25), "children": (0.5, 0.0), "ranks": (0.25, 0.125), "wait": 0.5}
    machine["cores"] = [Times(1.5, 0.25, 0.25, 0, 0), Times(1.0, 0.0, 0.5, 0.25, 0.25)]
    found = probe.read(102.0)
    assert {name: found[name] for name in found if name.endswith(("cores", "core", "wait"))} == {
        "process_cores": 0.5,
        "children_cores": 0.375,  # half a second of their own, and a quarter of one that has ended
        "ranks_cores": 0.188,
        "busy_cores": 1.375,
        "busiest_core": 0.875,
        "other_cores": 0.312,
        "stolen_cores": 0.125,
        "io_wait_cores": 0.125,
        "main_thread_core_wait": 0.25,
    }
    assert found["children"] == 2
    assert probe.core_loads == [88, 50]


def test_clocks_that_run_apart_make_nobody_negative(machine):
    """Ticks of a process may be told a little before those of the machine."""
    probe = CoresProbe()
    probe.read(0.0)
    machine |= {"own": (1.5, 0.0), "cores": [Times(1.0, 0.0, 0.0, 0, 0)] * 2}
    assert probe.read(1.0)["other_cores"] == 0.5
    machine |= {"own": (4.0, 0.0), "cores": [Times(2.0, 0.0, 0.0, 0, 0)] * 2}
    assert probe.read(2.0)["other_cores"] == 0.0


def test_disks(monkeypatch):
    told = [Disk(10, 0, 0, 0, 5, 0), Disk(30, 20, 4096, 8192, 45, 40)]
    monkeypatch.setattr(disks.psutil, "disk_io_counters", lambda nowrap: told.pop(0))
    own = [(0, 0), (1000, 500)]
    monkeypatch.setattr(disks, "io_bytes_of", lambda pids: own.pop(0))
    probe = DisksProbe()
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


def test_a_container_without_disks_tells_none(monkeypatch):
    monkeypatch.setattr(disks.psutil, "disk_io_counters", lambda nowrap: None)
    monkeypatch.setattr(disks, "io_bytes_of", lambda pids: None)
    probe = DisksProbe()
    assert (probe.read(0.0), probe.read(1.0)) == ({}, {})


def test_the_network_without_what_leads_back_here(monkeypatch):
    told = [{"lo": Card(0, 0), "eth0": Card(0, 0), "eth1": Card(0, 0)}]
    told.append({"lo": Card(999, 999), "eth0": Card(10, 20), "eth1": Card(30, 40)})
    monkeypatch.setattr(network.psutil, "net_io_counters", lambda pernic, nowrap: told.pop(0))
    probe = NetworkProbe()
    assert probe.read(0.0) == {}
    assert probe.read(4.0) == {"network_received_bytes_per_second": 10.0, "network_sent_bytes_per_second": 15.0}
