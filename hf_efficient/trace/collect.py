"""Events into columns, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hf_efficient.trace.event import Event, EventArgs
from hf_efficient.trace.kinds import KINDS, Kind
from hf_efficient.trace.table import EventTable

__all__ = ["Collector"]

_NO_ARGS = EventArgs()
_LARGEST, _LARGEST_DEVICE = 2**63 - 1, 2**31 - 1
_TYPES = {
    "start": np.float64,
    "length": np.float64,
    "name": np.int32,
    "kind": np.int8,
    "thread": np.int32,
    "correlation": np.int64,
    "device": np.int32,
    "stream": np.int64,
    "bytes": np.int64,
    "stack": np.int32,
}


class Collector:
    """Takes batches of events and gives the table.

    Attributes:
        events: complete ones, seen so far.
        has_shapes: an operator told the shapes of its inputs.
    """

    def __init__(self) -> None:
        self.events = 0
        self.has_shapes = False
        self._names: dict[str, int] = {}
        self._threads: dict[tuple[Any, Any], int] = {}
        self._columns: dict[str, list[np.ndarray[Any, Any]]] = {name: [] for name in _TYPES}

    def add(self, batch: Iterable[Event]) -> None:
        """One batch."""
        complete = [event for event in batch if event.ph == "X" and event.ts is not None]
        self.events += len(complete)
        used = [(event, kind) for event in complete if (kind := KINDS.get(event.cat, -1)) >= 0]
        events = [event for event, _ in used]
        args = [event.args or _NO_ARGS for event in events]
        names, threads = self._names, self._threads
        self.has_shapes = self.has_shapes or any(one.dims for one in args)
        self._put("kind", [kind for _, kind in used])
        self._put("start", [event.ts for event in events])
        self._put("length", [event.dur or 0.0 for event in events])
        self._put("name", [names.setdefault(event.name, len(names)) for event in events])
        self._put("thread", [threads.setdefault((event.pid, event.tid), len(threads)) for event in events])
        self._put("stack", [names.setdefault(one.call_stack, len(names)) if one.call_stack else -1 for one in args])
        self._put("correlation", _numbers([one.correlation for one in args]))
        self._put("bytes", _numbers([one.size if one.bytes == -1 else one.bytes for one in args]))
        self._put("device", [_device(event) if kind <= Kind.MEMSET else -1 for event, kind in used])
        self._put("stream", [_stream(event) if kind <= Kind.MEMSET else -1 for event, kind in used])

    def table(self) -> EventTable:
        """All that was added, in order of time."""
        columns = {name: _joined(parts, _TYPES[name]) for name, parts in self._columns.items()}
        self._columns.clear()
        order = np.lexsort((-columns["length"], columns["start"]))
        columns = {name: column[order] for name, column in columns.items()}
        start = columns["start"] - (columns["start"][0] if len(order) else 0.0)
        end = start + np.maximum(columns.pop("length"), 0.0)
        columns["start"] = start
        return EventTable(**columns, end=end, names=list(self._names), threads=list(self._threads))

    def _put(self, column: str, values: list[Any]) -> None:
        self._columns[column].append(np.array(values, dtype=_TYPES[column]))


def _joined(parts: list[np.ndarray[Any, Any]], dtype: Any) -> np.ndarray[Any, Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _numbers(values: list[int | str | float | None]) -> list[int]:
    return [value if type(value) is int and -1 <= value <= _LARGEST else _number(value) for value in values]


def _number(value: int | str | float | None) -> int:
    """An integer that may be written as a string; -1 where it is none."""
    try:
        number = int(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if -1 <= number <= _LARGEST else -1


def _device(event: Event) -> int:
    """The number of the device; events of very old traces tell it by their process alone."""
    told = _number(event.args.device) if event.args else -1
    return min(told if told >= 0 else _number(event.pid), _LARGEST_DEVICE)


def _stream(event: Event) -> int:
    told = _number(event.args.stream) if event.args else -1
    return told if told >= 0 else _number(event.tid)
