"""A trace file in, its events as columns and what it says about itself out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_efficient.records.trace import TraceFile
from hf_efficient.trace.collect import Collector
from hf_efficient.trace.kinds import Kind
from hf_efficient.trace.stream import EventStream
from hf_efficient.trace.table import EventTable

__all__ = ["Trace", "read_trace"]


@dataclass(frozen=True)
class Trace:
    """What was read of a trace file."""

    file: TraceFile
    events: EventTable


def read_trace(path: Path) -> Trace:
    """Read a Chrome trace that torch's profiler wrote, plain or gzipped, whole or cut off.

    The memory that this takes is that of the columns (about 60 bytes per event that a figure needs) and of a few
    megabytes of text at a time, whatever the size of the file.

    Raises:
        OutputError: the file cannot be read, or is no Chrome trace.
    """
    stream = EventStream(path)
    collector = Collector()
    for batch in stream.batches():
        collector.add(batch)
    events = collector.table()
    about = _about(stream.head, stream.tail)
    distributed = _mapping(about.get("distributedInfo"))
    file = TraceFile(
        path=str(path),
        read_bytes=stream.read_bytes,
        events=collector.events,
        unreadable_events=stream.unreadable,
        truncated=stream.truncated,
        rank=_integer(distributed.get("rank")),
        world_size=_integer(distributed.get("world_size")),
        backend=str(distributed["backend"]) if distributed.get("backend") else None,
        device_names=_device_names(about.get("deviceProperties")),
        has_stacks=bool((events.kind == Kind.PYTHON).any() or (events.stack >= 0).any()),
        has_shapes=collector.has_shapes,
    )
    return Trace(file, events)


def _about(head: bytes, tail: bytes) -> dict[str, Any]:
    """What stands around the list of events; a tail that is cut off or broken is left out, then the head too."""
    for text in (head + b"[]" + tail, head + b"[]}"):
        try:
            return _mapping(json.loads(text.decode("utf-8", "replace"), strict=False))
        except ValueError:
            continue
    return {}


def _device_names(properties: Any) -> dict[int, str]:
    found = [_mapping(one) for one in properties] if isinstance(properties, list) else []
    return {one["id"]: str(one["name"]) for one in found if isinstance(one.get("id"), int) and "name" in one}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) else None
