"""What a snapshot of the CUDA allocator's history says."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["AllocationSite", "MemorySnapshot"]


@dataclass(frozen=True)
class AllocationSite:
    """Allocations of one line of code that were live together.

    Attributes:
        place: ``models/llama/modeling_llama.py:180 forward``, the innermost frame outside torch; in words where there
            is none.
        called_from: the frames around it, from the inside.
        bytes: of all its blocks, as they were asked for.
        blocks: how many.
    """

    place: str
    called_from: list[str]
    bytes: int
    blocks: int


@dataclass(frozen=True)
class MemorySnapshot:
    """One device at one moment, and its peak as far as the history goes back.

    Attributes:
        moment: ``after step 10``, ``at the end``, ``out of memory``.
        reserved_bytes: held of the device.
        allocated_bytes: of that, in use by tensors, or waiting for another stream to be done with them.
        inactive_split_bytes: free, but in segments of which another part is in use: what fragmentation keeps from
            being given back, or used for something larger.
        inactive_split_blocks: in so many pieces.
        largest_free_bytes: the largest piece that an allocation could get without asking the device.
        peak_bytes: the most that was live at once, as it was asked for, since the history begins.
        sites: what it was made of, the largest first.
        other_sites_bytes: of the sites that are left out.
        allocation_retries: times that the allocator had to free its cache, since the process began; None where that is
            not known.
        failed_bytes: what could not be allocated; None where nothing failed.
        device_free_bytes: what the device itself had left then.
        history_events: allocations and releases that the history holds.
    """

    moment: str
    reserved_bytes: int
    allocated_bytes: int
    inactive_split_bytes: int
    inactive_split_blocks: int
    largest_free_bytes: int
    peak_bytes: int
    sites: list[AllocationSite] = field(default_factory=list)
    other_sites_bytes: int = 0
    allocation_retries: int | None = None
    failed_bytes: int | None = None
    device_free_bytes: int | None = None
    history_events: int = 0
