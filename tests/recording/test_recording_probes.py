"""What the cores, disks and network do, by counters set by hand, and the processes that belong to this one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest

from hf_efficient.recording import probes
from hf_efficient.recording.probes import (
    CoresProbe,
    DisksProbe,
    NetworkProbe,
    Rates,
    children_of,
    cpu_seconds_of,
    io_bytes_of,
    siblings,
)


def test_a_real_child_is_found_with_and_without_proc():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in children_of(os.getpid())
        assert child.pid in children_of(os.getpid(), Path("/nowhere"))
        assert sum(cpu_seconds_of([child.pid])) >= 0.0
        child.communicate(b"\n")


def test_a_process_by_itself_has_no_other_ranks():
    assert siblings({}) == siblings({"LOCAL_WORLD_SIZE": "1"}) == siblings({"LOCAL_WORLD_SIZE": "many"}) == []


def test_the_other_ranks_are_the_launchers_other_children(monkeypatch):
    monkeypatch.setattr(probes, "children_of", lambda pid: [os.getpid(), 4242] if pid == os.getppid() else [])
    assert siblings({"LOCAL_WORLD_SIZE": "2"}) == [4242]


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


def test_disks(monkeypatch):
    told = [Disk(10, 0, 0, 0, 5, 0), Disk(30, 20, 4096, 8192, 45, 40)]
    monkeypatch.setattr(probes.psutil, "disk_io_counters", lambda nowrap: told.pop(0))
    own = [(0, 0), (1000, 500)]
    monkeypatch.setattr(probes, "io_bytes_of", lambda pids: own.pop(0))
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


def test_the_network_without_what_leads_back_here(monkeypatch):
    told = [{"lo": Card(0, 0), "eth0": Card(0, 0), "eth1": Card(0, 0)}]
    told.append({"lo": Card(999, 999), "eth0": Card(10, 20), "eth1": Card(30, 40)})
    monkeypatch.setattr(probes.psutil, "net_io_counters", lambda pernic, nowrap: told.pop(0))
    probe = NetworkProbe()
    assert probe.read(0.0) == {}
    assert probe.read(4.0) == {"network_received_bytes_per_second": 10.0, "network_sent_bytes_per_second": 15.0}


def test_rises_per_second():
    rates = Rates()
    assert rates.of(10.0, {"a": 100, "b": 5}) == {}
    assert rates.of(14.0, {"a": 300, "b": 5}) == {"a": 50.0, "b": 0.0}


def test_a_counter_that_fell_or_is_new_tells_nothing():
    rates = Rates()
    rates.of(0.0, {"a": 100})
    assert rates.of(1.0, {"a": 50, "b": 7}) == {}
    assert rates.of(2.0, {"a": 60, "b": 9}) == {"a": 10, "b": 2}


def test_what_this_process_used_is_what_the_kernel_counts():
    before = cpu_seconds_of([os.getpid()])
    while time.process_time() < 0.2 or cpu_seconds_of([os.getpid()])[0] - before[0] < 0.1:
        sum(range(10_000))
    own, _ = cpu_seconds_of([os.getpid()])
    assert own == pytest.approx(time.process_time(), abs=0.05)  # the kernel counts ticks of 10 ms
    assert cpu_seconds_of([2**22 + 1]) == (0.0, 0.0)  # one that has ended
    assert io_bytes_of([2**22 + 1]) is None
