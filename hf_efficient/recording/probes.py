"""What the sampler asks of this machine once per second: its cores, disks, network and GPUs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from hf_efficient.recording.meters import CudaDevice, core_wait_of, nvml_handle

_LEAST_SECONDS = 0.2
_IDLE = ("idle", "iowait", "guest", "guest_nice", "steal")  # guests are in user; what a host steals nobody here has


class Rates:
    """How fast counters rise between readings at least a fifth of a second apart; one that fell gives nothing."""

    def __init__(self) -> None:
        self._last: tuple[float, Mapping[str, float]] | None = None

    def of(self, at: float, counters: Mapping[str, float]) -> dict[str, float]:
        """Rises per second since the reading before, of those that were there too."""
        before = self._last
        if before is not None and 0 <= at - before[0] < _LEAST_SECONDS:
            return {}  # the next reading counts from the one before: counters move in steps
        self._last = (at, dict(counters))
        if before is None or at < before[0]:
            return {}
        seconds = at - before[0]
        rises = {name: value - before[1][name] for name, value in counters.items() if name in before[1]}
        return {name: rise / seconds for name, rise in rises.items() if rise >= 0}


class CoresProbe:
    """Who keeps the cores of this machine busy. Figures in cores: 1.5 are one and a half of them, busy all the time.

        process_cores         this process, without its children
        children_cores        its children: loader workers, tokenizers
        ranks_cores           the other ranks of the same launch on this machine, with their children
        other_cores           everybody else on the machine, this container or not
        busy_cores            all of them
        stolen_cores          what the host of a virtual machine took
        load_1_minute         the system's load average
        main_thread_core_wait share of its time that the main thread was ready to run and waited for a core

    CPU times come in hundredths of a second, so over a second a figure is good to about 0.01.
    """

    name = "load of the processor"

    def __init__(self) -> None:
        self._rates, self._cores = Rates(), Rates()
        self._core_wait = core_wait_of(os.getpid())  # Linux: the id of the main thread

    def read(self, at: float) -> dict[str, float]:
        children, ranks = children_of(os.getpid()), siblings()
        own, waited = cpu_seconds_of([os.getpid()])
        counters = {"process_cores": own, "children_cores": waited + sum(cpu_seconds_of(children))}
        if ranks:
            workers = [pid for rank in ranks for pid in children_of(rank)]
            counters["ranks_cores"] = sum(cpu_seconds_of(ranks)) + sum(cpu_seconds_of(workers))
        if self._core_wait is not None:
            counters["main_thread_core_wait"] = self._core_wait()
        found = self._rates.of(at, counters)
        if "main_thread_core_wait" in found:  # the kernel counts a wait when it ends, also what came before the reading
            found["main_thread_core_wait"] = min(1.0, found["main_thread_core_wait"])
        machine = self._machine(at)
        if "busy_cores" in machine and "process_cores" in found:
            known = sum(found.get(name, 0.0) for name in ("process_cores", "children_cores", "ranks_cores"))
            machine["other_cores"] = max(0.0, machine["busy_cores"] - known)
        return {name: round(value, 3) for name, value in {**found, **machine}.items()}

    def _machine(self, at: float) -> dict[str, float]:
        counters: dict[str, float] = {"stolen_cores": 0.0}
        cores = psutil.cpu_times(percpu=True)
        for number, times in enumerate(cores):
            counters[f"{number}"] = sum(times) - sum(getattr(times, name, 0.0) for name in _IDLE)
            counters["stolen_cores"] += getattr(times, "steal", 0.0)
        rates = self._cores.of(at, counters)
        loads = [min(1.0, rates[f"{number}"]) for number in range(len(cores)) if f"{number}" in rates]
        found = {name: rate for name, rate in rates.items() if name == "stolen_cores"}
        if loads:
            found["busy_cores"] = sum(loads)
        return {**found, "load_1_minute": os.getloadavg()[0]}


class DisksProbe:
    """Rates over all disks of the machine, and on Linux those of this process with its children.
    ``disk_latency_milliseconds``: the mean time of a request, waiting included; absent without requests."""

    name = "load of the disks"

    def __init__(self) -> None:
        self._disks, self._own = Rates(), Rates()

    def read(self, at: float) -> dict[str, float]:
        found: dict[str, float] = {}
        disks = psutil.disk_io_counters(nowrap=False)
        if disks is not None:  # a container may show none
            counters = {
                "disk_read_bytes_per_second": disks.read_bytes,
                "disk_write_bytes_per_second": disks.write_bytes,
                "disk_reads_per_second": disks.read_count,
                "disk_writes_per_second": disks.write_count,
                "milliseconds": disks.read_time + disks.write_time,
            }
            rates = self._disks.of(at, counters)
            busy = rates.pop("milliseconds", 0.0)
            requests = rates.get("disk_reads_per_second", 0.0) + rates.get("disk_writes_per_second", 0.0)
            found |= {name: round(rate, 1) for name, rate in rates.items()}
            if requests > 0:
                found["disk_latency_milliseconds"] = round(busy / requests, 3)
        own = io_bytes_of([os.getpid(), *children_of(os.getpid())])
        if own is not None:
            counters = {"read_bytes_per_second": own[0], "write_bytes_per_second": own[1]}
            found |= {name: round(rate, 1) for name, rate in self._own.of(at, counters).items()}
        return found


class NetworkProbe:
    """``network_received_bytes_per_second``, ``network_sent_bytes_per_second``, over all interfaces but loopback."""

    name = "load of the network"

    def __init__(self) -> None:
        self._rates = Rates()

    def read(self, at: float) -> dict[str, float]:
        interfaces = psutil.net_io_counters(pernic=True, nowrap=False)
        outside = [counters for name, counters in interfaces.items() if not name.startswith("lo")]
        counters = {
            "network_received_bytes_per_second": sum(one.bytes_recv for one in outside),
            "network_sent_bytes_per_second": sum(one.bytes_sent for one in outside),
        }
        return {name: round(rate, 1) for name, rate in self._rates.of(at, counters).items()}


THROTTLES = {
    0x04: "power_cap",
    0x08: "hardware_slowdown",
    0x20: "thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
}
"""Reasons why a GPU runs below the clocks that were asked of it (nvml.h, ``nvmlClocksEventReasons``, CUDA 12.4). Not
among them: that it is idle, that somebody has set its clocks, that it waits for another one in its sync group."""


class GpuProbe:
    """Figures of one GPU, through NVIDIA's management library; those that it does not know are absent.

        utilization_percent          share of the last sixth of a second to second in which a kernel ran
        memory_utilization_percent   the same of its memory being read or written
        memory_used_bytes            by all processes
        temperature_celsius, sm_clock_mhz, memory_clock_mhz

    ``index`` is NVML's, ``throttled`` the last reasons (``THROTTLES``). ``MeterError``: NVML does not know the device.
    """

    def __init__(self, device: CudaDevice) -> None:
        nvml, handle, self.index = nvml_handle(device)
        self._nvml = nvml
        self.name = f"load of GPU {self.index}"
        self.throttled: list[str] = []
        self._questions: dict[str, Callable[[], float]] = {
            "reasons": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
            "utilization_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "memory_utilization_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).memory,
            "memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "temperature_celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, 0),  # NVML_TEMPERATURE_GPU
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, 1),  # NVML_CLOCK_SM
            "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, 2),  # NVML_CLOCK_MEM
        }

    def read(self, at: float) -> dict[str, float]:
        asked = {name: self._ask(question) for name, question in self._questions.items()}
        reasons = int(asked.pop("reasons") or 0)
        self.throttled = [name for bit, name in THROTTLES.items() if reasons & bit]
        return {name: value for name, value in asked.items() if value is not None}

    def _ask(self, question: Callable[[], Any]) -> float | None:
        try:
            return float(question())
        except (self._nvml.NVMLError, AttributeError):  # it does not know that, or the library is older
            return None


def children_of(pid: int, proc: Path = Path("/proc")) -> list[int]:
    """Living processes that this one's main thread started; 10 us on Linux, elsewhere a millisecond."""
    try:
        return [int(one) for one in (proc / f"{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        try:
            return [child.pid for child in psutil.Process(pid).children()]
        except psutil.Error:
            return []


def siblings(environment: Mapping[str, str] = os.environ) -> list[int]:
    """The other ranks on this machine, where a launcher has started several; they are its children as this one is."""
    ranks = environment.get("LOCAL_WORLD_SIZE", "1")
    if not ranks.isdigit() or int(ranks) < 2:
        return []
    return [pid for pid in children_of(os.getppid()) if pid != os.getpid()]


def cpu_seconds_of(pids: Iterable[int]) -> tuple[float, float]:
    """CPU time of these processes, and of their children that they have waited for; 0 for one that has ended."""
    own = waited = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            own += times.user + times.system
            waited += times.children_user + times.children_system
    return own, waited


def io_bytes_of(pids: Iterable[int]) -> tuple[int, int] | None:
    """Bytes that disks read and wrote for these processes and their waited-for children, or None (proc_pid_io(5))."""
    read = written = answers = 0
    for pid in pids:
        with contextlib.suppress(psutil.Error, AttributeError, OSError):
            counters = psutil.Process(pid).io_counters()
            read, written = read + counters.read_bytes, written + counters.write_bytes
            answers += 1
    return (read, written) if answers else None
