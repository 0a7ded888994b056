"""Rows of an account about memory and the device: a name, and what is told of it."""

from __future__ import annotations

from collections.abc import Iterator

from hf_efficient.records import MemoryAccount, RunAccount
from hf_efficient.report.phases import category_label, phase_label
from hf_efficient.units import size

__all__ = ["device_rows", "memory_rows"]


def memory_rows(memory: MemoryAccount) -> Iterator[tuple[str, str]]:
    """The peaks; then, where they are known, the categories and the phases, the largest first."""
    yield ("memory", _peaks(memory))
    if memory.categories:
        yield ("", _categories(memory))
    if memory.phase_peak_allocated_bytes:
        phases = sorted(memory.phase_peak_allocated_bytes.items(), key=lambda one: -one[1])
        yield ("", "at most in " + ", ".join(f"{phase_label(name)} {size(peak)}" for name, peak in phases))


def device_rows(account: RunAccount) -> Iterator[tuple[str, str]]:
    """The time on the device, where its events told it."""
    if account.time.device_seconds:
        told = [f"{phase_label(name)} {value:.2f} s" for name, value in account.time.device_seconds.items()]
        yield ("device", ", ".join(told))


def _peaks(memory: MemoryAccount) -> str:
    told = []
    if memory.peak_rss_bytes is not None:
        told.append(f"{size(memory.peak_rss_bytes)} at most in the host's memory")
    if memory.device_peak_allocated_bytes is not None:
        told.append(f"{size(memory.device_peak_allocated_bytes)} allocated on the device")
    if memory.device_peak_reserved_bytes is not None:
        told.append(f"{size(memory.device_peak_reserved_bytes)} reserved")
    if memory.device_allocation_retries:
        told.append(f"{memory.device_allocation_retries} allocation retries")
    return ", ".join(told) or "not known"


def _categories(memory: MemoryAccount) -> str:
    """What is left of the peak is one of them; what is more than the peak comes last."""
    told = [
        f"{category_label(category.name)} {size(category.bytes)}"
        for category in sorted(memory.categories, key=lambda one: -one.bytes)
        if category.bytes > 0
    ]
    more = -sum(category.bytes for category in memory.categories if category.bytes < 0)
    return ", ".join(told) + (f"; {size(more)} of that are not there at the moment of the peak" if more else "")
