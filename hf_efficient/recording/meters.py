"""Energy meters of this machine: NVML for GPUs, RAPL for CPUs, and estimates by a table where nothing measures; what
the system says of this process without waiting for a device: its start, its waits for a core, its peaks of memory."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import resource
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from hf_efficient.estimate.cost import energy_from_cpu_seconds, energy_from_tdp
from hf_efficient.facts.environment import usable_cpus
from hf_efficient.facts.prices import cpu_power
from hf_efficient.facts.tables import accelerator_of_device


@dataclass(frozen=True)
class ProcessStart:
    """The start of the process, as ``time.perf_counter_ns()`` would have read then. ``source``: ``kernel``: the clock
    since boot, to a tick of 10 ms; ``psutil``: two readings of the wall clock, off by its changes and up to a second of
    rounding."""

    perf_ns: int
    source: Literal["kernel", "psutil"]


def process_start() -> ProcessStart:
    now_ns, age_seconds = time.perf_counter_ns(), _kernel_age()
    known = age_seconds is not None
    if age_seconds is None:
        age_seconds = time.time() - psutil.Process().create_time()
    start_ns = now_ns - max(0, round(age_seconds * 1e9))  # a tick or a rounded second may make it slightly negative
    return ProcessStart(start_ns, "kernel" if known else "psutil")


def _kernel_age() -> float | None:
    """By field 22 of ``/proc/PID/stat``: clock ticks from boot to the start; None where there is none: not Linux."""
    try:
        stat = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    ticks = int(stat[stat.rindex(")") + 2 :].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def core_wait_seconds() -> float:
    """Of the thread that asks, since it began; 0 where unknown. Takes two microseconds."""
    read = core_wait_of(threading.get_native_id())
    return 0.0 if read is None else read()


@functools.cache
def core_wait_of(thread: int) -> Callable[[], float] | None:
    """Reads the seconds of a thread of this process; None where unknown."""
    try:  # Documentation/scheduler/sched-stats.rst: ns on a core, ns waiting for one, times it got one
        file = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)
        _ = int(os.pread(file, 100, 0).split()[1])
    except (OSError, ValueError, IndexError):
        return None

    def read() -> float:
        try:
            return int(os.pread(file, 100, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):  # the thread has ended
            return 0.0

    return read


def peak_rss_bytes() -> int:
    """The largest resident memory of this process so far; ``getrusage`` may give its parent's on Linux."""
    status = Path("/proc/self/status")
    found = re.search(r"^VmHWM:\s+(\d+)", status.read_text(errors="replace"), re.MULTILINE) if status.exists() else None
    peak = int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _books(index: int | None = None) -> dict[str, Any] | None:
    """Of the CUDA allocator, for the current device by default; None without CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    try:
        return torch.cuda.memory.memory_stats_as_nested_dict(index)
    except RuntimeError:  # somebody else's allocator, which keeps no books
        return None


def device_memory(index: int | None) -> dict[str, int]:
    """What a CUDA device holds now, by the allocator's books on the host; any thread may ask. Empty without CUDA."""
    books = None if index is None else _books(index)
    kinds = () if books is None else ("allocated_bytes", "reserved_bytes")
    return {f"device_{kind}": int(books[kind]["all"]["current"]) for kind in kinds}  # type: ignore[index]


def device_peaks() -> dict[str, int]:
    """Peaks of the current CUDA device since the process started, with those kept by ``keep_device_peaks``."""
    books = _books()
    if books is None:
        return {}
    kept = _kept.get(int(sys.modules["torch"].cuda.current_device()), (0, 0))
    return {
        "device_peak_allocated_bytes": max(int(books["allocated_bytes"]["all"]["peak"]), kept[0]),
        "device_peak_reserved_bytes": max(int(books["reserved_bytes"]["all"]["peak"]), kept[1]),
        "device_allocation_retries": int(books["num_alloc_retries"]),
    }


def keep_device_peaks(device: int, allocated_bytes: int, reserved_bytes: int) -> None:
    """Remember the peaks of a CUDA device that are about to be set back, for ``device_peaks``."""
    allocated, reserved = _kept.get(device, (0, 0))
    _kept[device] = (max(allocated, allocated_bytes), max(reserved, reserved_bytes))


_kept: dict[int, tuple[int, int]] = {}


_POWERCAP = Path("/sys/class/powercap")


class MeterError(Exception):
    """A meter that is not there or may not be read; the message is the reason, for the account."""


@dataclass(frozen=True)
class EnergyMeter:
    """Reads the energy or the power of a part of this machine, such as ``GPU 0``; ``read`` may raise anything. ``id``
    is the same from every process. A counter starts again from 0 at ``range_joules``."""

    name: str
    id: str
    source: Literal["nvml", "rapl", "estimate"]
    unit: Literal["joules", "watts"]
    read: Callable[[], float]
    range_joules: float | None = None
    note: str = ""

    def described(self) -> dict[str, Any]:
        facts = {"id": self.id, "machine": platform.node(), "source": self.source, "unit": self.unit, "note": self.note}
        return facts | ({} if self.range_joules is None else {"range_joules": self.range_joules})


def host_meters(root: Path = _POWERCAP) -> list[EnergyMeter]:
    """RAPL once per machine; where it cannot be read, an estimate to which every process adds its part."""
    reads_for_all = os.environ.get("LOCAL_RANK", "0") == "0"
    try:
        meters = rapl_meters(root)
    except MeterError as error:
        return [cpu_estimate(usable_cpus() if reads_for_all else 0.0, str(error))]
    return meters if reads_for_all else []


def gpu_meters(devices: list[CudaDevice]) -> tuple[list[EnergyMeter], dict[str, str]]:
    """NVML for each, else an estimate; and by the name of a part what is wrong with its meter. That nothing measures a
    GPU is a fault, as CUDA cannot be there without NVML."""
    meters, faults = list[EnergyMeter](), dict[str, str]()
    for device in devices:
        try:
            meters.append(nvml_meter(device))
        except Exception as error:  # noqa: BLE001  NVML may answer anything
            why = str(error) if isinstance(error, MeterError) else f"{type(error).__name__}: {error}"
            faults[f"GPU {device.index}"] = why
            try:
                meters.append(gpu_estimate(device, why))
            except MeterError as also:
                faults[f"GPU {device.index}"] = str(also)
    return meters, faults


@dataclass(frozen=True)
class CudaDevice:
    """``index`` is torch's; ``cuda`` is False under ROCm."""

    index: int
    name: str
    uuid: str
    cuda: bool = True


def current_device() -> int | None:
    """The device of the thread that asks; None where this process has not started CUDA. Starts nothing."""
    torch = sys.modules.get("torch")
    return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_initialized() else None


def cuda_devices(current: int | None) -> list[CudaDevice]:
    """Those that this process computes on; starts nothing, and waits for no device. One of several processes has
    ``current``; a process alone all devices on which torch holds memory."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    if current is not None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return [_described(torch, current)]
    seen = range(torch.cuda.device_count())
    held = (index for index in seen if index == current or device_memory(index).get("device_reserved_bytes"))
    return [_described(torch, index) for index in held]


def _described(torch: Any, index: int) -> CudaDevice:
    facts = torch.cuda.get_device_properties(index)
    uuid = str(facts.uuid) if str(facts.uuid).startswith(("GPU-", "MIG-")) else f"GPU-{facts.uuid}"
    return CudaDevice(index, facts.name, uuid, cuda=torch.version.hip is None)


def nvml_meter(device: CudaDevice) -> EnergyMeter:
    """The energy counter of this very device (Volta and later), or its power where it has no counter. The counter is in
    millijoules since the driver was loaded; the power in milliwatts, over the last second on recent devices (NVML API
    reference, ``nvmlDeviceGetTotalEnergyConsumption``, ``nvmlDeviceGetPowerUsage``). Raises ``MeterError``."""
    if not device.cuda:
        raise MeterError("it is driven by ROCm, whose meters are not read here")
    pynvml, handle, index = nvml_handle(device)
    with contextlib.suppress(pynvml.NVMLError):  # most devices cannot be sliced
        if pynvml.nvmlDeviceGetMigMode(handle)[0]:
            raise MeterError("it is a MIG slice, and NVML meters the whole GPU only")
    name = f"GPU {index}"

    def joules() -> float:
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3

    def watts() -> float:
        return float(pynvml.nvmlDeviceGetPowerUsage(handle)) / 1e3

    try:
        joules()
    except pynvml.NVMLError as no_counter:
        try:
            watts()
        except pynvml.NVMLError as error:
            raise MeterError(f"NVML has neither energy ({no_counter}) nor power ({error}) of it") from error
        return EnergyMeter(name, device.uuid, "nvml", "watts", watts, note=f"power samples, {device.name}")
    return EnergyMeter(name, device.uuid, "nvml", "joules", joules, note=f"energy counter, {device.name}")


def nvml_handle(device: CudaDevice) -> tuple[Any, Any, int]:
    """NVML, its handle of this device (by UUID, since NVML counts hidden ones), and its number there. Raises
    ``MeterError``: there is no NVML here, or it does not know the device."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
        return pynvml, handle, int(pynvml.nvmlDeviceGetIndex(handle))
    except pynvml.NVMLError as error:
        raise MeterError(f"NVML: {error}") from error


def rapl_meters(root: Path = _POWERCAP) -> list[EnergyMeter]:
    """A counter for each socket, and one for its memory where that is metered apart. Zones are folders ``intel-rapl:0``
    (also on AMD) and ``intel-rapl:0:1``, each with a ``name``, ``energy_uj`` in microjoules and its range
    ``max_energy_range_uj``. ``core`` and ``uncore`` are parts of ``package``; ``psys`` holds it; neither is added
    (Linux, Documentation/power/powercap/powercap.rst). Since 5.10 only root reads them. Raises ``MeterError``."""
    found = []
    try:
        for zone in sorted(root.glob("intel-rapl:*")):
            name = _text(zone / "name")
            if name.startswith("package-"):
                found.append(_rapl_meter(zone, f"CPU package {name.removeprefix('package-')}"))
            elif name == "dram":
                socket = _text(root / zone.name.rpartition(":")[0] / "name").removeprefix("package-")
                found.append(_rapl_meter(zone, f"memory of CPU package {socket}"))
    except PermissionError as error:
        raise MeterError(f"RAPL: {error.filename} may be read by root only") from error
    except (OSError, ValueError) as error:
        raise MeterError(f"RAPL: {error}") from error
    if not found:
        raise MeterError(f"this machine shows no RAPL counters under {root}")
    return found


def _rapl_meter(zone: Path, name: str) -> EnergyMeter:
    read = functools.partial(_joules, zone / "energy_uj")
    read()
    range_joules = _joules(zone / "max_energy_range_uj")
    identity = f"{platform.node()} {zone.name}"
    return EnergyMeter(name, identity, "rapl", "joules", read, range_joules, "the whole socket, whoever uses it")


def _joules(file: Path) -> float:
    return int(_text(file)) / 1e6


def _text(file: Path) -> str:
    return file.read_text(encoding="ascii").strip()


def cpu_seconds() -> float:
    """Time on a CPU, user and kernel, of this process and of the children that it has seen end."""
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


def cpu_estimate(cpus: float, why: str) -> EnergyMeter:
    """The server's share of this process: its CPU seconds, and the ``cpus`` ready for it, counted by one process."""
    power = cpu_power()
    began, began_cpu = time.perf_counter(), cpu_seconds()

    def joules() -> float:
        busy, wall = max(0.0, cpu_seconds() - began_cpu), time.perf_counter() - began
        return energy_from_cpu_seconds(busy, wall, cpus=cpus, min_watts=power.min_watts, max_watts=power.max_watts)

    watts = f"{power.min_watts:.2f} W for each of {cpus:g} CPUs and {power.max_watts - power.min_watts:.2f} W more"
    note = f"{watts} for each that is busy, memory included ({power.source}); {why}"
    return EnergyMeter("CPU", f"{platform.node()} process {os.getpid()}", "estimate", "joules", joules, note=note)


def gpu_estimate(device: CudaDevice, why: str) -> EnergyMeter:
    """The vendor's TDP all the time: an upper bound. Raises ``MeterError`` with both reasons: the TDP is not known."""
    known = accelerator_of_device(device.name)
    if known is None or known.tdp_watts is None:
        raise MeterError(f"{why}; and no TDP is known for {device.name}")
    tdp, began = known.tdp_watts, time.perf_counter()

    def joules() -> float:
        return energy_from_tdp(tdp, time.perf_counter() - began)

    note = f"its TDP of {tdp:g} W all the time, an upper bound ({known.name}); {why}"
    return EnergyMeter(f"GPU {device.index}", device.uuid, "estimate", "joules", joules, note=note)
