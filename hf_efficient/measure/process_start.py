"""When this process started, on the clock that everything else is timed by."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["ProcessStart", "process_start", "start_ticks"]

_IMPORTED_NS = time.perf_counter_ns()


@dataclass(frozen=True)
class ProcessStart:
    """The start of the process.

    Attributes:
        perf_ns: what ``time.perf_counter_ns()`` would have read then.
        source: ``kernel``: start time and now on the clock since boot, which no setting of the wall clock moves, to a
            tick of 10 ms; ``psutil``: two readings of the wall clock, off by as much as it was set in between and by up
            to a second of rounding; ``import``: unknown, this is when the module was imported.
    """

    perf_ns: int
    source: Literal["kernel", "psutil", "import"]


def process_start() -> ProcessStart:
    """When this process started, from the best source that there is."""
    for source, read_age in (("kernel", _kernel_age), ("psutil", _psutil_age)):
        now_ns, age_seconds = time.perf_counter_ns(), read_age()
        if age_seconds is not None and age_seconds > -1:  # a tick or a rounded second may make it slightly negative
            start_ns = now_ns - max(0, round(age_seconds * 1e9))
            return ProcessStart(start_ns, "kernel" if source == "kernel" else "psutil")
    return ProcessStart(_IMPORTED_NS, "import")


def start_ticks(stat: str) -> int:
    """Field 22 of a line of ``/proc/PID/stat``: clock ticks from boot to the start of the process.

    The second field is the command in parentheses and may itself hold spaces and parentheses.

    Raises:
        ValueError: the line is not one of those.
    """
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
