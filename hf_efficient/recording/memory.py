"""Peaks of memory that can be read without waiting for a device."""

import sys
from pathlib import Path
from typing import Any


def peak_rss_bytes() -> int | None:
    """The largest resident memory of this process so far, or None; ``getrusage`` may give its parent's on Linux."""
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
