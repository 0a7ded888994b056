"""Peaks of memory, and what the memory was used for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_efficient.account.processes import ProcessSpans
from hf_efficient.account.steps import RankSteps
from hf_efficient.records import MemoryAccount, MemoryCategory

__all__ = ["MEMORY_CATEGORIES", "counted_categories", "memory_account"]

MEMORY_CATEGORIES = ("weights", "adapter", "gradients", "optimizer_state", "activations", "logits", "rest")
"""In the order in which they come to be."""


def memory_account(processes: Sequence[ProcessSpans], ranks: Sequence[RankSteps]) -> MemoryAccount:
    """Peaks over all processes of rank 0; the categories of the last process that told most of them.

    Args:
        processes: of rank 0.
        ranks: rank 0 first.
    """

    def peak(name: str) -> int | None:
        return max((process.memory[name] for process in processes if name in process.memory), default=None)

    retries = [
        process.memory["device_allocation_retries"]
        for process in processes
        if "device_allocation_retries" in process.memory
    ]
    return MemoryAccount(
        peak_rss_bytes=peak("peak_rss_bytes"),
        device_peak_allocated_bytes=peak("device_peak_allocated_bytes"),
        device_peak_reserved_bytes=peak("device_peak_reserved_bytes"),
        device_allocation_retries=sum(retries) if retries else None,
        phase_peak_allocated_bytes=_phase_peaks(ranks),
        categories=_categories(processes),
    )


def _phase_peaks(ranks: Sequence[RankSteps]) -> dict[str, int] | None:
    peaks: dict[str, int] = {}
    for segment in ranks[0].segments if ranks and ranks[0].rank == 0 else ():
        for name, size in segment.phase_peak_bytes.items():
            peaks[name] = max(size, peaks.get(name, 0))
    return peaks or None


def counted_categories(processes: Sequence[ProcessSpans]) -> list[MemoryCategory]:
    """Of one rank: what the last process that told most of them counted; empty where nothing was.

    Args:
        processes: of the rank.
    """
    told = _telling(processes)
    if told is None:
        return []
    known = {str(one["name"]): MemoryCategory(**one) for one in told.facts["memory"]["categories"]}
    return [known[name] for name in MEMORY_CATEGORIES if name in known]


def _categories(processes: Sequence[ProcessSpans]) -> list[MemoryCategory]:
    told, found = _telling(processes), counted_categories(processes)
    rest = None if told is None else _rest(told, told.facts["memory"], found)
    return found if rest is None else [*found, rest]


def _telling(processes: Sequence[ProcessSpans]) -> ProcessSpans | None:
    told = max(reversed(processes), key=_counted, default=None)  # of equals the last
    return told if told is not None and _counted(told) else None


def _counted(process: ProcessSpans) -> int:
    """How many categories it told: one that ended before its first step tells fewer."""
    return len(process.facts.get("memory", {}).get("categories", ()))


def _rest(process: ProcessSpans, facts: dict[str, Any], found: Sequence[MemoryCategory]) -> MemoryCategory | None:
    """What is left of the peak of the device that trains; None where no peak of it is known."""
    on_cpu = str(facts["device"]).startswith("cpu")
    peak = process.memory.get("peak_rss_bytes" if on_cpu else "device_peak_allocated_bytes")
    if peak is None:
        return None
    size = peak - sum(category.bytes for category in found)
    note = "of the peak: temporary tensors"
    if not any(category.name == "activations" for category in found):
        note += ", activations and logits"
    if on_cpu:
        note += ", Python with its libraries, and the data"
    if size < 0:
        note = "negative, since what is counted above is not all there at one moment, the moment of the peak"
    return MemoryCategory("rest", size, "derived", note)
