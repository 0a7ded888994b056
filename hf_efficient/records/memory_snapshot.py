"""What a snapshot of the CUDA allocator's history says."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["AllocationSite", "MemorySnapshot", "ModuleAllocations"]


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
class ModuleAllocations:
    """Allocations of one module, or of those that differ in their numbers alone, that were live together.

    Attributes:
        module: ``model.layers.*.mlp.down_proj``, of a single one its number; `` (backward)`` behind it where its
            gradients asked for them; ``class LlamaMLP`` where the stack alone tells; in words where it is no module.
        bytes: of all their blocks, as they were asked for.
        blocks: how many.
        modules: how many modules they are; 0 where they are none.
        place: the line of code that asked for most of it.
    """

    module: str
    bytes: int
    blocks: int
    modules: int
    place: str


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
        modules: what the peak was made of by the modules of the model, the largest first; empty where it is not known.
        other_modules_bytes: of the modules that are left out.
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
    modules: list[ModuleAllocations] = field(default_factory=list)
    other_modules_bytes: int = 0
