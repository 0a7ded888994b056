"""A trace file in, its events as columns out, in bounded memory.

A trace is one JSON object of hundreds of megabytes, cut where one event seems to end and the next to begin (``}``, a
comma, ``{``). A part cut elsewhere is no valid JSON; only one that cannot be decoded is looked at more closely.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from hf_efficient.errors import OutputError
from hf_efficient.records.trace import TraceFile

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_PIECE_BYTES = 4 << 20
_MOST_HEAD_BYTES = 64 << 20
_LONG_EVENT_BYTES = 1 << 20
_MOST_BORDERS = 4
_MOST_ENDS = 64
_LARGEST, _LARGEST_DEVICE = 2**63 - 1, 2**31 - 1

_BLANK = b" \t\r\n"
_LIST_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_LIST_END = re.compile(rb"\}\s*\]")
_BORDER = re.compile(rb"\}\s*,\s*\{")
_EVENT_BORDER = re.compile(rb"(?<=\})\s*,\s*(?=\{\s*\"(?:ph|cat|name|pid|tid|ts|args|id)\")")
_NO_NUMBER = re.compile(rb"(?<=[:\[,\s])-?(?:nan|inf|infinity)(?=[\s,\]\}])", re.IGNORECASE)
_CONTROL = re.compile(rb"[\x00-\x1f]")


class Kind(IntEnum):
    KERNEL = 0
    COPY = 1
    MEMSET = 2
    CALL = 3
    OPERATOR = 4
    ANNOTATION = 5
    PYTHON = 6
    OVERHEAD = 7


DEVICE_KINDS = (Kind.KERNEL, Kind.COPY, Kind.MEMSET)

# Kineto's categories, and those of torch 1.x, which wrote them with capitals. No figure needs the others: arrows,
# annotations on the side of the device, its synchronisation events, the trace itself.
_CATEGORIES = {
    Kind.KERNEL: "kernel Kernel mtia_ccp_events",
    Kind.COPY: "gpu_memcpy Memcpy",
    Kind.MEMSET: "gpu_memset Memset",
    Kind.CALL: "cuda_runtime cuda_driver hip_runtime mtia_runtime xpu_runtime xpu_driver privateuse1_runtime "
    "privateuse1_driver Runtime",
    Kind.OPERATOR: "cpu_op Operator",
    Kind.ANNOTATION: "user_annotation",
    Kind.PYTHON: "python_function",
    Kind.OVERHEAD: "overhead",
}
_KINDS: dict[str | None, Kind] = {name: kind for kind, names in _CATEGORIES.items() for name in names.split()}


@dataclass(frozen=True)
class EventTable:
    """One row per event, in the order of their start; where two start together, the longer one comes first."""

    start: Floats  # microseconds since the first event, as ``end``
    end: Floats
    name: npt.NDArray[np.int32]  # index into ``names``
    kind: npt.NDArray[np.int8]
    thread: npt.NDArray[np.int32]  # a number for each pair of process and thread
    correlation: Ints  # links a call of the runtime with what it submitted; -1: none
    device: npt.NDArray[np.int32]  # -1 for events of the host, as ``stream``
    stream: Ints
    bytes: Ints  # of a copy or memset; -1: unknown
    stack: npt.NDArray[np.int32]  # index into ``names``; -1: no call stack
    names: list[str]

    def __len__(self) -> int:
        return len(self.start)

    def rows(self, *kinds: Kind) -> Ints:
        return np.flatnonzero(np.isin(self.kind, kinds))

    def device_rows(self, device: int) -> Ints:
        return np.flatnonzero(np.isin(self.kind, DEVICE_KINDS) & (self.device == device))

    def devices(self) -> list[int]:
        return np.unique(self.device[np.isin(self.kind, DEVICE_KINDS)]).tolist()

    def named(self, pattern: re.Pattern[str]) -> Ints:
        return np.array([index for index, name in enumerate(self.names) if pattern.search(name)], dtype=np.int64)


@dataclass(frozen=True)
class Trace:
    file: TraceFile
    events: EventTable


def read_trace(path: Path) -> Trace:
    """Read a Chrome trace that torch's profiler wrote, plain or gzipped, whole or cut off, in the memory of the columns
    (60 bytes per event that a figure needs) and a few megabytes. Raises ``OutputError``: unreadable, or no trace."""
    stream, columns = _EventStream(path), _Columns()
    for batch in stream.batches():
        columns.add(batch)
    events = columns.table()
    about = _about(stream.head, stream.tail)
    distributed, devices = _mapping(about.get("distributedInfo")), about.get("deviceProperties")
    properties = [_mapping(one) for one in devices] if isinstance(devices, list) else []
    named = [one for one in properties if isinstance(one.get("id"), int) and "name" in one]
    rank, world_size = distributed.get("rank"), distributed.get("world_size")
    file = TraceFile(
        path=str(path),
        read_bytes=stream.read_bytes,
        events=columns.events,
        unreadable_events=stream.unreadable,
        truncated=stream.truncated,
        rank=rank if isinstance(rank, int) else None,
        world_size=world_size if isinstance(world_size, int) else None,
        backend=str(distributed["backend"]) if distributed.get("backend") else None,
        device_names={one["id"]: str(one["name"]) for one in named},
        has_shapes=columns.has_shapes,
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


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


class _Args(msgspec.Struct, gc=False):
    """What torch's profiler writes beside an event; numbers may be strings (ROCm), -1 where unknown."""

    correlation: int | str | float | None = -1
    device: int | str | float | None = -1
    stream: int | str | float | None = -1
    bytes: int | str | float | None = -1
    size: int | str | float | None = -1
    call_stack: str | None = msgspec.field(name="Call stack", default=None)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())


class _Event(msgspec.Struct, gc=False):
    """A complete event (``ph`` is ``X``) has a start ``ts`` and a length ``dur``, both in microseconds."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: str | int | float | None = None
    tid: str | int | float | None = None
    ts: float | None = None
    dur: float | None = None
    args: _Args | None = None


_DECODER = msgspec.json.Decoder(list[_Event])
_NO_ARGS = _Args()


def _decoded(text: bytes) -> list[_Event] | None:
    """Events with commas between them; None where the text is anything else."""
    try:
        return _DECODER.decode(b"[" + text + b"]")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


class _EventStream:
    """A trace file, read once; ``head`` and ``tail`` are the JSON around the list of events."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head, self.tail = b"", b""
        self.read_bytes, self.unreadable = 0, 0
        self.truncated = False

    def batches(self) -> Iterator[list[_Event]]:
        pieces = self._pieces()
        buffer, ended = self._find_list(pieces), False
        while not ended:
            piece = next(pieces, b"")
            buffer += piece
            events, rest, ended = self._decode(buffer, at_end=not piece)
            if not piece and len(rest) == len(buffer):
                break
            yield events
            buffer = rest
        self.truncated = not ended
        self.tail = buffer + b"".join(pieces) if ended else b""

    def _pieces(self) -> Iterator[bytes]:
        """The text of the file; of a gzip stream that is cut off or damaged what came before."""
        try:
            with self.path.open("rb") as file:
                source = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == b"\x1f\x8b" else file
                while piece := source.read1(_PIECE_BYTES):
                    self.read_bytes += len(piece)
                    yield piece
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return
        except OSError as error:
            why = error.strerror or type(error).__name__
            message = f"{self.path} cannot be read: {why}; name a trace that torch's profiler wrote"
            raise OutputError(message) from error

    def _find_list(self, pieces: Iterator[bytes]) -> bytes:
        """What follows the opening bracket of the list of events, as far as it was read."""
        buffer = b""
        for piece in pieces:
            buffer += piece
            start = buffer.lstrip(b"\xef\xbb\xbf" + _BLANK)
            if start[:1] == b"[":  # a bare list of events is a Chrome trace too
                return start[1:]
            if found := _LIST_START.search(buffer):
                self.head = buffer[: found.end() - 1]
                return buffer[found.end() :]
            if start[:1] not in (b"{", b"") or len(buffer) > _MOST_HEAD_BYTES:
                break
        raise OutputError(
            f"{self.path} is no Chrome trace: {_what_it_is(buffer)}; name a .json or .json.gz that torch's profiler "
            "wrote (export_chrome_trace, or tensorboard_trace_handler)"
        )

    def _decode(self, buffer: bytes, at_end: bool) -> tuple[list[_Event], bytes, bool]:
        """Events at the start of the buffer, what is left of it, and whether the list has ended."""
        buffer = buffer.lstrip(_BLANK + b",")
        if buffer[:1] == b"]":
            return [], buffer[1:], True
        borders = _last_borders(buffer)
        for border in borders:  # one inside an event's arguments is no border between events
            if (events := _decoded(buffer[:border])) is not None:
                return events, buffer[border:], False
        for end in islice(_LIST_END.finditer(buffer), _MOST_ENDS):
            if (events := _decoded(buffer[: end.start() + 1])) is not None:
                return events, buffer[end.end() :], True
        if at_end:
            return self._one_by_one(buffer, at_end)
        if len(buffer) < _LONG_EVENT_BYTES or not borders:  # it may hold a part of a long event
            return [], buffer, False
        events, rest, ended = self._one_by_one(buffer[: borders[0]], at_end)
        return events, rest + buffer[borders[0] :], ended

    def _one_by_one(self, text: bytes, at_end: bool) -> tuple[list[_Event], bytes, bool]:
        """As ``_decode``, of a text with a broken event, which is repaired, or left out and counted."""
        found: list[_Event] = []
        borders = [0, *(place for border in _EVENT_BORDER.finditer(text) for place in border.span()), len(text)]
        for start, stop in zip(borders[::2], borders[1::2], strict=True):
            piece = text[start:stop]
            events = _decoded(piece) or _decoded(_corrected(piece))
            if events:
                found += events
                continue
            for end in _LIST_END.finditer(piece):
                whole = piece[: end.start() + 1]
                if events := _decoded(whole) or _decoded(_corrected(whole)):
                    return found + events, text[start + end.end() :], True
            if at_end and stop == len(text):
                return found, piece, False
            self.unreadable += 1
        return found, b"", False


def _last_borders(buffer: bytes) -> list[int]:
    """Where the last events that are followed by another one end, the last first."""
    for window in (1 << 16, len(buffer)):
        first = max(0, len(buffer) - window)
        if found := [border.start() + 1 for border in _BORDER.finditer(buffer, first)]:
            return found[: -_MOST_BORDERS - 1 : -1]
    return []


def _corrected(text: bytes) -> bytes:
    """Without control characters and wrong UTF-8, and null for ``nan`` and ``inf``: Kineto has written all of them."""
    return _NO_NUMBER.sub(b"null", _CONTROL.sub(b" ", text).decode("utf-8", "replace").encode())


def _what_it_is(buffer: bytes) -> str:
    if not buffer:
        return "it is empty"
    if buffer.lstrip(_BLANK)[:1] != b"{":
        return "it is no JSON object"
    return "it has no list traceEvents" if buffer.rstrip(_BLANK)[-1:] == b"}" else "it ends before its list of events"


class _Columns:
    """Takes batches of events and gives the table; ``events`` counts complete ones of all kinds."""

    def __init__(self) -> None:
        self.events = 0
        self.has_shapes = False
        self._names: dict[str, int] = {}
        self._threads: dict[tuple[Any, Any], int] = {}
        self._parts: list[dict[str, npt.NDArray[Any]]] = []

    def add(self, batch: list[_Event]) -> None:
        complete = [event for event in batch if event.ph == "X" and event.ts is not None]
        self.events += len(complete)
        used = [event for event in complete if event.cat in _KINDS]
        both = [(event, event.args or _NO_ARGS) for event in used]
        self.has_shapes = self.has_shapes or any(args.dims for _, args in both)
        names, threads = self._names, self._threads
        stacks = [names.setdefault(args.call_stack, len(names)) if args.call_stack else -1 for _, args in both]
        columns: dict[str, tuple[Any, list[Any]]] = {
            "start": (np.float64, [event.ts for event in used]),
            "end": (np.float64, [event.dur or 0.0 for event in used]),
            "name": (np.int32, [names.setdefault(event.name, len(names)) for event in used]),
            "kind": (np.int8, [_KINDS[event.cat] for event in used]),
            "thread": (np.int32, [threads.setdefault((event.pid, event.tid), len(threads)) for event in used]),
            "correlation": (np.int64, [_number(args.correlation) for _, args in both]),
            # Events of very old traces name device and stream by their process and thread alone.
            "device": (np.int64, [_number(args.device, event.pid) for event, args in both]),
            "stream": (np.int64, [_number(args.stream, event.tid) for event, args in both]),
            "bytes": (np.int64, [_number(args.bytes, args.size) for _, args in both]),
            "stack": (np.int32, stacks),
        }
        self._parts.append({name: np.array(values, dtype) for name, (dtype, values) in columns.items()})

    def table(self) -> EventTable:
        self.add([])
        columns = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        self._parts.clear()
        order = np.lexsort((-columns["end"], columns["start"]))
        columns = {name: column[order] for name, column in columns.items()}
        on_device = np.isin(columns["kind"], DEVICE_KINDS)
        columns["device"] = np.where(on_device, np.minimum(columns["device"], _LARGEST_DEVICE), -1).astype(np.int32)
        columns["stream"] = np.where(on_device, columns["stream"], -1)
        columns["start"] -= columns["start"][0] if len(order) else 0.0
        columns["end"] = columns["start"] + np.maximum(columns["end"], 0.0)
        return EventTable(**columns, names=list(self._names))


def _number(*values: int | str | float | None) -> int:
    """The first integer that is not negative, perhaps written as a string; -1 where there is none."""
    for value in values:
        if type(value) is not int:
            try:
                value = int(value)  # type: ignore[arg-type]
            except (TypeError, ValueError, OverflowError):
                continue
        if 0 <= value <= _LARGEST:
            return value
    return -1
