"""What the system says of this process without waiting for a device: its start, its waits for a core, its peaks of
memory."""

import functools
import os
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
        return torch.cuda.memory.memory_stats_as_nested_dict(*(() if index is None else (index,)))
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
