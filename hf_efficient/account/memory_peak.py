"""Which allocations were live at the peak of an allocator's history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Live", "live_at_peak"]

_ACTIVE = ("active_allocated", "active_awaiting_free", "active_pending_free")


@dataclass(frozen=True)
class Live:
    """A block that is in use.

    Attributes:
        bytes: as they were asked for.
        frames: of the call that allocated it, the innermost first; None where the history does not go back to it.
        label: that the allocator had been told when it allocated it; empty without one.
    """

    bytes: int
    frames: Sequence[dict[str, Any]] | None
    label: str = ""


def live_at_peak(segments: Iterable[dict[str, Any]], events: Sequence[dict[str, Any]]) -> list[Live]:
    """The blocks in use when most bytes were.

    The end is known: the blocks that are active. From there the events are undone, one after the other: an ``alloc``
    takes its block away, a ``free_completed`` brings it back. The peak is the largest sum on the way.

    Args:
        segments: of one device.
        events: of its trace, oldest first.
    """
    live = {block["address"]: block for segment in segments for block in _with_addresses(segment) if _is_active(block)}
    total = sum(_size(block) for block in live.values())
    peak, peak_at = total, len(events)
    for place in range(len(events) - 1, -1, -1):
        event = events[place]
        if event["action"] == "alloc":
            total -= event["size"]
        elif event["action"] == "free_completed":
            total += event["size"]
        if total > peak:
            peak, peak_at = total, place
    return _state(live, events, peak_at)


def _state(live: dict[int, dict[str, Any]], events: Sequence[dict[str, Any]], until: int) -> list[Live]:
    """The blocks in use before ``events[until]``."""
    blocks = {address: Live(_size(block), block.get("frames") or None) for address, block in live.items()}
    for event in reversed(events[until:]):
        if event["action"] == "alloc":
            blocks.pop(event["addr"], None)
        elif event["action"] == "free_completed":
            blocks[event["addr"]] = Live(event["size"], None)
    unknown = set(blocks)
    for event in reversed(events[:until]):
        if event["action"] == "alloc" and event.get("addr") in unknown:
            unknown.discard(event["addr"])
            held = blocks[event["addr"]]
            frames = event.get("frames", []) if held.frames is None else held.frames
            blocks[event["addr"]] = Live(held.bytes, frames, _label(event))
    return list(blocks.values())


def _label(event: dict[str, Any]) -> str:
    """Only the history's events have one, the blocks have none; and torch before 2.10 has none at all."""
    told = event.get("user_metadata")
    return told if isinstance(told, str) else ""


def _with_addresses(segment: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """The blocks of a segment lie one behind the other; older versions of torch leave their addresses out."""
    address = segment.get("address", 0)
    for block in segment["blocks"]:
        yield {"address": address, **block}
        address += block["size"]


def _is_active(block: dict[str, Any]) -> bool:
    return block["state"] in _ACTIVE


def _size(block: dict[str, Any]) -> int:
    return int(block.get("requested_size", block["size"]))
