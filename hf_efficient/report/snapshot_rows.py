"""A snapshot of the CUDA allocator, as lines and cells."""

from __future__ import annotations

from hf_efficient.records import AllocationSite, MemorySnapshot, ModuleAllocations
from hf_efficient.units import share, size

__all__ = ["MODULE_HEADINGS", "SITE_HEADINGS", "module_cells", "site_cells", "snapshot_summary"]

MODULE_HEADINGS = ("module", "size", "share", "blocks", "modules", "most of it asked for by")
SITE_HEADINGS = ("asked for by", "size", "share", "blocks", "called from")


def snapshot_summary(snapshot: MemorySnapshot) -> str:
    """Its figures in a sentence, without a full stop."""
    told = [
        f"{size(snapshot.allocated_bytes)} in use of {size(snapshot.reserved_bytes)} reserved",
        f"{size(snapshot.inactive_split_bytes)} free in {snapshot.inactive_split_blocks:,} pieces beside others in use",
        f"the largest free piece is {size(snapshot.largest_free_bytes)}",
        f"at most {size(snapshot.peak_bytes)} at once in the last {snapshot.history_events:,} events",
    ]
    if snapshot.allocation_retries is not None:
        told.append(f"{snapshot.allocation_retries:,} allocation retries")
    if snapshot.failed_bytes is not None:
        free = (
            "" if snapshot.device_free_bytes is None else f" with {size(snapshot.device_free_bytes)} left on the device"
        )
        told.append(f"{size(snapshot.failed_bytes)} could not be allocated{free}")
    return f"{snapshot.moment}: {'; '.join(told)}"


def site_cells(snapshot: MemorySnapshot, site: AllocationSite) -> list[str]:
    """One line of code, and its part of the peak."""
    part = share(site.bytes / snapshot.peak_bytes) if snapshot.peak_bytes else ""
    return [site.place, size(site.bytes), part, f"{site.blocks:,}", ", ".join(site.called_from)]


def module_cells(snapshot: MemorySnapshot, held: ModuleAllocations) -> list[str]:
    """One module, or those that differ in their numbers alone, and their part of the peak."""
    part = share(held.bytes / snapshot.peak_bytes) if snapshot.peak_bytes else ""
    many = f"{held.modules:,}" if held.modules else ""
    return [held.module, size(held.bytes), part, f"{held.blocks:,}", many, held.place]
