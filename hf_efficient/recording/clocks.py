"""Clocks that the system keeps: when this process started, and how long a thread waited for a core."""

import functools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_IMPORTED_NS = time.perf_counter_ns()


@dataclass(frozen=True)
class ProcessStart:
    """The start of the process, as ``time.perf_counter_ns()`` would have read then. ``source``: ``kernel``: the clock
    since boot, to a tick of 10 ms; ``psutil``: two readings of the wall clock, off by its changes and up to a second of
    rounding; ``import``: unknown, so the import of this module."""

    perf_ns: int
    source: Literal["kernel", "psutil", "import"]


def process_start() -> ProcessStart:
    for source, read_age in (("kernel", _kernel_age), ("psutil", _psutil_age)):
        now_ns, age_seconds = time.perf_counter_ns(), read_age()
        if age_seconds is not None and age_seconds > -1:  # a tick or a rounded second may make it slightly negative
            start_ns = now_ns - max(0, round(age_seconds * 1e9))
            return ProcessStart(start_ns, "kernel" if source == "kernel" else "psutil")
    return ProcessStart(_IMPORTED_NS, "import")


def start_ticks(stat: str) -> int:
    """Field 22 of ``/proc/PID/stat``: clock ticks from boot to the start; ``ValueError`` for no such line."""
    fields = stat[stat.rindex(")") + 2 :].split()
    if len(fields) < 20:
        raise ValueError("fewer fields than a stat line has")
    return int(fields[19])


def _kernel_age() -> float | None:
    try:
        ticks = start_ticks(Path("/proc/self/stat").read_text(encoding="ascii", errors="replace"))
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):  # no such file, field or clock: not Linux
        return None


def _psutil_age() -> float | None:
    import psutil

    try:
        return time.time() - psutil.Process().create_time()
    except (psutil.Error, OSError):
        return None


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
