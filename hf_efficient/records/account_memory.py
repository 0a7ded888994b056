"""What the memory of a run was used for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["MemoryAccount", "MemoryCategory"]


@dataclass(frozen=True)
class MemoryCategory:
    """Bytes of one kind of tensor on the device that trains (the host's memory on a CPU), on rank 0.

    Attributes:
        name: ``weights``, ``adapter``, ``gradients``, ``optimizer_state``, ``activations``, ``logits``, ``rest``.
        bytes: of the storages, each counted once.
        how: ``exact``: the tensors were counted; ``measured``: counted in one forward, see ``note``; ``derived``: what
            is left of a measured peak.
        note: when, and on what.
    """

    name: str
    bytes: int
    how: Literal["exact", "measured", "derived"]
    note: str = ""


@dataclass(frozen=True)
class MemoryAccount:
    """Peaks of rank 0 over all processes of the run.

    Attributes:
        peak_rss_bytes: resident host memory, from the start of the process.
        device_peak_allocated_bytes: tensors on the CUDA device, as torch's allocator counts them.
        device_peak_reserved_bytes: what the allocator held of the device.
        device_allocation_retries: times that it had to free its cache to allocate.
        phase_peak_allocated_bytes: the device's peak within each phase; None without a CUDA device.
        categories: what the memory was used for; empty where it was not looked at.
    """

    peak_rss_bytes: int | None
    device_peak_allocated_bytes: int | None
    device_peak_reserved_bytes: int | None
    device_allocation_retries: int | None
    phase_peak_allocated_bytes: dict[str, int] | None = None
    categories: list[MemoryCategory] = field(default_factory=list)
