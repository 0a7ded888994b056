"""Peaks of memory that can be read without waiting for a device."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["device_memory", "device_peaks", "peak_rss_bytes"]


def peak_rss_bytes() -> int | None:
    """The largest resident memory of this process so far; None where the system does not tell.

    From ``VmHWM`` on Linux: ``getrusage`` there may still tell the peak of the process that started this one.
    """
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def device_memory(index: int | None) -> dict[str, int]:
    """What a CUDA device holds now, from the allocator's own books on the host; may be asked by any thread.

    Empty without a device, or where the process has not started CUDA.
    """
    torch = sys.modules.get("torch")
    if index is None or torch is None or not torch.cuda.is_initialized():
        return {}
    books = torch.cuda.memory_stats_as_nested_dict(index)
    return {
        "device_allocated_bytes": int(books["allocated_bytes"]["all"]["current"]),
        "device_reserved_bytes": int(books["reserved_bytes"]["all"]["current"]),
    }


def device_peaks() -> dict[str, int]:
    """Peaks of the current CUDA device since the process started, from the allocator's own books on the host.

    Neither imports torch nor starts CUDA: empty where the process has not done so.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    stats = torch.cuda.memory_stats()
    return {
        "device_peak_allocated_bytes": int(stats.get("allocated_bytes.all.peak", 0)),
        "device_peak_reserved_bytes": int(stats.get("reserved_bytes.all.peak", 0)),
        "device_allocation_retries": int(stats.get("num_alloc_retries", 0)),
    }
