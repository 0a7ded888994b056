"""What this machine can compute with."""

from __future__ import annotations

import os

import psutil

__all__ = ["accelerator_count", "thread_count"]


def accelerator_count() -> int:
    """Accelerators that torch sees here; 0 on a CPU."""
    import torch

    return int(torch.accelerator.device_count()) if torch.accelerator.is_available() else 0


def thread_count() -> int:
    """Threads worth computing with: ``OMP_NUM_THREADS`` where it is set, else the physical cores usable here."""
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdigit() and int(named) > 0:
        return int(named)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))
