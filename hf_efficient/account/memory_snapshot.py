"""A snapshot of the CUDA allocator in, what it says out; no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hf_efficient.account.code_place import code_place
from hf_efficient.account.memory_modules import module_sums
from hf_efficient.account.memory_peak import Live, live_at_peak
from hf_efficient.records import AllocationSite, MemorySnapshot

__all__ = ["snapshot_record"]

_MOST_SITES = 30
_MOST_MODULES = 60
_MOST_CALLERS = 4
_BEFORE = "allocated before the history begins"
_NO_PYTHON = "no Python frame: a backward's own thread, or C++"


def snapshot_record(
    snapshot: dict[str, Any], moment: str, device: int = 0, allocation_retries: int | None = None
) -> MemorySnapshot:
    """Its figures, and what its peak was made of.

    Args:
        snapshot: of ``torch.cuda.memory._snapshot``.
        moment: when it was taken, in words.
        device: index of the CUDA device.
        allocation_retries: what ``torch.cuda.memory_stats`` says; a snapshot does not hold it.
    """
    segments = [segment for segment in snapshot["segments"] if segment.get("device", device) == device]
    traces = snapshot.get("device_traces") or []
    events = traces[device] if device < len(traces) else []
    split = [block["size"] for segment in segments if _in_use(segment) for block in _free(segment)]
    live = live_at_peak(segments, events)
    sites = _sites(live)
    modules = module_sums(live, lambda block: _place(block.frames)[0])
    failed = next((event for event in reversed(events) if event["action"] == "oom"), None)
    return MemorySnapshot(
        moment=moment,
        reserved_bytes=sum(segment["total_size"] for segment in segments),
        allocated_bytes=sum(segment["active_size"] for segment in segments),
        inactive_split_bytes=sum(split),
        inactive_split_blocks=len(split),
        largest_free_bytes=max((block["size"] for segment in segments for block in _free(segment)), default=0),
        peak_bytes=sum(block.bytes for block in live),
        sites=sites[:_MOST_SITES],
        other_sites_bytes=sum(site.bytes for site in sites[_MOST_SITES:]),
        allocation_retries=allocation_retries,
        failed_bytes=None if failed is None else failed["size"],
        device_free_bytes=None if failed is None else failed.get("device_free"),
        history_events=len(events),
        modules=modules[:_MOST_MODULES],
        other_modules_bytes=sum(one.bytes for one in modules[_MOST_MODULES:]),
    )


def _in_use(segment: dict[str, Any]) -> bool:
    return any(block["state"] != "inactive" for block in segment["blocks"])


def _free(segment: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return (block for block in segment["blocks"] if block["state"] == "inactive")


def _sites(live: Sequence[Live]) -> list[AllocationSite]:
    """Blocks by the line that asked for them, the largest sum first."""
    sums: dict[tuple[str, ...], list[int]] = {}
    for block in live:
        held = sums.setdefault(_place(block.frames), [0, 0])
        held[0] += block.bytes
        held[1] += 1
    ordered = sorted(sums.items(), key=lambda site: (-site[1][0], site[0]))
    return [AllocationSite(place[0], list(place[1:]), held[0], held[1]) for place, held in ordered]


def _place(frames: Sequence[dict[str, Any]] | None) -> tuple[str, ...]:
    """The innermost frames outside torch; of torch's own where there are no others."""
    if frames is None:
        return (_BEFORE,)
    python = [frame for frame in frames if frame["filename"].endswith(".py")]
    own = [frame for frame in python if "/torch/" not in frame["filename"].replace("\\", "/")]
    shown = (own or python)[: 1 + _MOST_CALLERS]
    return tuple(code_place(f["filename"], f["line"], f["name"]) for f in shown) or (_NO_PYTHON,)
