"""A trace file in, its events as columns out.

A trace is one JSON object of hundreds of megabytes, cut where one event seems to end and the next to begin (``}``, a
comma, ``{``). A part cut elsewhere is no valid JSON; only one that cannot be decoded is read event by event.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
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
_LARGEST, _LARGEST_DEVICE = 2**63 - 1, 2**31 - 1

_LIST_START = re.compile(r'\A(?:\xef\xbb\xbf)?\s*(?:\[|\{.*?"traceEvents"\s*:\s*\[)', re.DOTALL)  # or a bare list
_CONTENT = re.compile(r"[^\s,]")
_BORDER = re.compile(r"(?<=\})\s*,\s*(?=\{\s*\"(?:ph|cat|name|pid|tid|ts|args|id)\")")
_NO_NUMBER = re.compile(r"(?<=[:\[,\s])-?(?:nan|inf|infinity)(?=[\s,\]\}])", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f]")


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
    """Read a Chrome trace that torch's profiler wrote, plain or gzipped, whole or cut off. It takes the memory of its
    text and of the columns (60 bytes per event that a figure needs). Raises ``OutputError``: unreadable, or no
    trace."""
    text, columns = _text_of(path), _Columns()
    found = _LIST_START.match(text)
    if found is None:
        raise OutputError(
            f"{path} is no Chrome trace: {_what_it_is(text)}; name a .json or .json.gz that torch's profiler "
            "wrote (export_chrome_trace, or tensorboard_trace_handler)"
        )
    events = _EventList(text, found.end())
    for batch in events.batches():
        columns.add(batch)
    about = _about(text[: found.end() - 1], text[events.at :] if events.ended else "")
    distributed, devices = _mapping(about.get("distributedInfo")), about.get("deviceProperties")
    properties = [_mapping(one) for one in devices] if isinstance(devices, list) else []
    named = [one for one in properties if isinstance(one.get("id"), int) and "name" in one]
    rank, world_size = distributed.get("rank"), distributed.get("world_size")
    file = TraceFile(
        path=str(path),
        read_bytes=len(text),
        events=columns.events,
        unreadable_events=events.unreadable,
        truncated=not events.ended,
        rank=rank if isinstance(rank, int) else None,
        world_size=world_size if isinstance(world_size, int) else None,
        backend=str(distributed["backend"]) if distributed.get("backend") else None,
        device_names={one["id"]: str(one["name"]) for one in named},
        has_shapes=columns.has_shapes,
    )
    return Trace(file, columns.table())


def _text_of(path: Path) -> str:
    """A character per byte; of a gzip stream that is cut off or damaged what came before."""
    text = bytearray()
    if path.is_fifo():  # whoever reads one waits for somebody to write
        raise OutputError(f"{path} is a pipe; name a trace that torch's profiler wrote")
    try:
        with path.open("rb") as file:
            source = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == b"\x1f\x8b" else file
            while piece := source.read1(_PIECE_BYTES):
                text += piece
    except (EOFError, zlib.error, gzip.BadGzipFile):
        pass
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise OutputError(f"{path} cannot be read: {why}; name a trace that torch's profiler wrote") from error
    return text.decode("latin-1")


def _what_it_is(text: str) -> str:
    if not text:
        return "it is empty"
    if text.lstrip()[:1] != "{":
        return "it is no JSON object"
    return "it has no list traceEvents" if text.rstrip()[-1:] == "}" else "it ends before its list of events"


def _about(head: str, tail: str) -> dict[str, Any]:
    """What stands around the list of events; a tail that is cut off or broken is left out, then the head too."""
    for text in (f"{head}[]{tail}", f"{head}[]}}"):
        try:
            return _mapping(json.loads(_as_text(text), strict=False))
        except ValueError:
            continue
    return {}


def _as_text(text: str) -> str:
    return text.encode("latin-1").decode("utf-8", "replace")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


class _Args(msgspec.Struct, gc=False):
    """What torch's profiler writes beside an event; numbers may be strings (ROCm), -1 where unknown."""

    correlation: int | str | float | None = -1
    device: int | str | float | None = -1
    stream: int | str | float | None = -1
    bytes: int | str | float | None = -1
    size: int | str | float | None = -1
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


def _corrected(text: str) -> bytes:
    """Without control characters and wrong UTF-8, and null for ``nan`` and ``inf``: Kineto has written all of them."""
    return _as_text(_NO_NUMBER.sub("null", _CONTROL.sub(" ", text))).encode()


class _EventList:
    """The list of events in the text of a trace, read from its start to ``at``; ``ended``: its bracket was there."""

    def __init__(self, text: str, start: int) -> None:
        self.at, self.unreadable, self.ended = start, 0, False
        self._text = text

    def batches(self) -> Iterator[list[_Event]]:
        while self.at < len(self._text) and not self.ended:
            self.at = self._next()
            until = self._border(self.at + _PIECE_BYTES)
            events = _decoded(self._text[self.at : until].encode("latin-1"))
            if events is None:
                yield list(self._one_by_one(until))
            else:
                self.at = until
                yield events

    def _one_by_one(self, until: int) -> Iterator[_Event]:
        """Of a part with the end of the list, a border inside of an event's arguments, or an event that is broken: that
        one is corrected, or left out and counted; one that the end of the file cuts off is neither."""
        while self.at < until and not self.ended:
            start = self._next()
            self.ended = self._text.startswith("]", start)
            self.at = start + 1 if self.ended else self._end_of_event(start)
            text = "" if self.ended else self._text[start : self.at]
            events = _decoded(text.encode("latin-1")) or _decoded(_corrected(text))
            yield from events or ()
            self.unreadable += events is None and self.at < len(self._text)

    def _end_of_event(self, start: int) -> int:
        try:
            return json.JSONDecoder(strict=False).raw_decode(self._text, start)[1]
        except ValueError:
            return self._border(start)

    def _border(self, start: int) -> int:
        """The end of an event from here on that another one follows; else that of the text."""
        found = _BORDER.search(self._text, start)
        return found.start() if found else len(self._text)

    def _next(self) -> int:
        found = _CONTENT.search(self._text, self.at)
        return found.start() if found else len(self._text)


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
