"""What this machine can compute with."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil

__all__ = ["accelerator_count", "cpu_emulates_bf16", "cpu_multiplies_bf16", "thread_count", "usable_cpus"]


def accelerator_count() -> int:
    """Accelerators that torch sees here; 0 on a CPU."""
    import torch

    return int(torch.accelerator.device_count()) if torch.accelerator.is_available() else 0


def cpu_multiplies_bf16() -> bool:
    """Whether torch knows this CPU to have instructions for it: AVX512-BF16 or AMX."""
    import torch

    asked = [getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")]
    return any(bool(one()) for one in asked if one is not None)


def cpu_emulates_bf16() -> bool:
    """Whether it is an x86 without them, on which float32 is faster by far.

    Products of 800 x 576 by 576 x 1536 took 7 times as long in bfloat16 forwards and 28 times backwards on an AMD EPYC
    with AVX2 (torch 2.13). Of other architectures torch does not tell.
    """
    return platform.machine().lower() in ("x86_64", "amd64") and not cpu_multiplies_bf16()


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
