"""What this machine can compute with."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

__all__ = ["accelerator_count", "thread_count", "usable_cpus"]


def accelerator_count() -> int:
    """Accelerators that torch sees here; 0 on a CPU."""
    import torch

    return int(torch.accelerator.device_count()) if torch.accelerator.is_available() else 0


def thread_count() -> int:
    """Threads worth computing with: ``OMP_NUM_THREADS`` where it is set, else the physical cores usable here."""
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdigit() and int(named) > 0:
        return int(named)
    usable = _allowed_cpus()
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))


def usable_cpus(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> float:
    """Hardware threads that this process may keep busy: those it may run on, and no more than its container's quota.

    Args:
        quota: of the control group, version 2: microseconds of CPU time, or ``max``, per period of microseconds.
    """
    usable = float(_allowed_cpus())
    try:
        granted, period = quota.read_text(encoding="ascii").split()
        return usable if granted == "max" else min(usable, int(granted) / int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return usable


def _allowed_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
