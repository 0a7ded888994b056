"""What an event of a trace is, by the category that Kineto gives it.

All events of a trace as columns.

Events into columns, batch by batch.

A trace file in, its events as columns and what it says about itself out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hf_efficient.records.trace import TraceFile
from hf_efficient.trace.stream import Event, EventArgs, EventStream


class Kind(IntEnum):
    """What is told apart."""

    KERNEL = 0
    COPY = 1
    MEMSET = 2
    CALL = 3
    OPERATOR = 4
    ANNOTATION = 5
    PYTHON = 6
    OVERHEAD = 7


DEVICE_KINDS = (Kind.KERNEL, Kind.COPY, Kind.MEMSET)

# Today's categories and those of torch 1.x, which wrote them with capitals. No figure needs the others: arrows between
# events, annotations on the side of the device, its synchronisation events, the trace itself.
KINDS: dict[str | None, int] = {
    "kernel": Kind.KERNEL,
    "Kernel": Kind.KERNEL,
    "mtia_ccp_events": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY,
    "Memcpy": Kind.COPY,
    "gpu_memset": Kind.MEMSET,
    "Memset": Kind.MEMSET,
    "cuda_runtime": Kind.CALL,
    "cuda_driver": Kind.CALL,
    "hip_runtime": Kind.CALL,
    "mtia_runtime": Kind.CALL,
    "xpu_runtime": Kind.CALL,
    "xpu_driver": Kind.CALL,
    "privateuse1_runtime": Kind.CALL,
    "privateuse1_driver": Kind.CALL,
    "Runtime": Kind.CALL,
    "cpu_op": Kind.OPERATOR,
    "Operator": Kind.OPERATOR,
    "user_annotation": Kind.ANNOTATION,
    "python_function": Kind.PYTHON,
    "overhead": Kind.OVERHEAD,
}


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class EventTable:
    """One row per event, in the order of their start; where two start together, the longer one comes first.

    Attributes:
        start, end: microseconds since the first event.
        name: index into ``names``.
        kind: ``Kind``.
        thread: index into ``threads``.
        correlation: links a call of the runtime with what it submitted; -1: none.
        device, stream: -1 for events of the host.
        bytes: of a copy or memset; -1: not told.
        stack: index into ``names`` of a recorded call stack; -1: none.
        names: every name once.
        threads: process and thread, as the trace has them.
    """

    start: Floats
    end: Floats
    name: npt.NDArray[np.int32]
    kind: npt.NDArray[np.int8]
    thread: npt.NDArray[np.int32]
    correlation: Ints
    device: npt.NDArray[np.int32]
    stream: Ints
    bytes: Ints
    stack: npt.NDArray[np.int32]
    names: list[str]
    threads: list[tuple[object, object]]

    def __len__(self) -> int:
        return len(self.start)

    def rows(self, *kinds: Kind) -> Ints:
        """The rows of these kinds, ascending."""
        return np.flatnonzero(np.isin(self.kind, kinds))

    def device_rows(self, device: int) -> Ints:
        """The rows of what a device ran, in the order of their start."""
        return np.flatnonzero(np.isin(self.kind, DEVICE_KINDS) & (self.device == device))

    def devices(self) -> list[int]:
        """The devices that ran something, ascending."""
        found: list[int] = np.unique(self.device[np.isin(self.kind, DEVICE_KINDS)]).tolist()
        return found


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
