"""A trace file in, its events as columns out.

A trace is one JSON object of hundreds of megabytes, cut where one event seems to end and the next to begin (``}``, a
comma, ``{``). A part cut elsewhere is no valid JSON; only one that cannot be decoded is read event by event.
"""

import gzip
import itertools
import json
import re
import zlib
from collections.abc import Iterable, Iterator
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
# The end of an event that another one follows.
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

    def by_device(self) -> dict[int, Ints]:
        rows = self.rows(*DEVICE_KINDS)
        return {one: rows[self.device[rows] == one] for one in np.unique(self.device[rows]).tolist()}

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
    text = _text_of(path)
    found = _LIST_START.match(text)
    if found is None:
        raise OutputError(
            f"{path} is no Chrome trace, as it has no list traceEvents; name a .json or .json.gz that torch's profiler "
            "wrote (export_chrome_trace, or tensorboard_trace_handler)"
        )
    events = _EventList(text, found.end())
    table, count, has_shapes = _table(events.batches())
    about = _about(text[: found.end() - 1], text[events.at :] if events.ended else "")
    distributed, devices = _mapping(about.get("distributedInfo")), about.get("deviceProperties")
    properties = [_mapping(one) for one in devices] if isinstance(devices, list) else []
    named = [one for one in properties if isinstance(one.get("id"), int) and "name" in one]
    rank, world_size = distributed.get("rank"), distributed.get("world_size")
    file = TraceFile(
        path=str(path),
        read_bytes=len(text),
        events=count,
        unreadable_events=events.unreadable,
        truncated=not events.ended,
        rank=rank if isinstance(rank, int) else None,
        world_size=world_size if isinstance(world_size, int) else None,
        backend=str(distributed["backend"]) if distributed.get("backend") else None,
        device_names={one["id"]: str(one["name"]) for one in named},
        has_shapes=has_shapes,
    )
    return Trace(file, table)


def _text_of(path: Path) -> str:
    """A character per byte; of a gzip stream that is cut off or damaged what came before."""
    text = bytearray()
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
            self.at = self._find(_CONTENT, self.at)
            until = self._find(_BORDER, self.at + _PIECE_BYTES)
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
            start = self._find(_CONTENT, self.at)
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
            return self._find(_BORDER, start)

    def _find(self, pattern: re.Pattern[str], start: int) -> int:
        """Where the next one begins, from here on; else the end of the text."""
        found = pattern.search(self._text, start)
        return found.start() if found else len(self._text)


def _table(batches: Iterable[list[_Event]]) -> tuple[EventTable, int, bool]:
    """The events that a figure needs, how many complete ones of all kinds there are, and whether shapes are told."""
    count, has_shapes = 0, False
    names: dict[str, int] = {}
    threads: dict[tuple[Any, Any], int] = {}
    parts: list[dict[str, npt.NDArray[Any]]] = []
    nothing: list[_Event] = []
    for batch in itertools.chain(batches, [nothing]):
        complete = [event for event in batch if event.ph == "X" and event.ts is not None]
        count += len(complete)
        used = [event for event in complete if event.cat in _KINDS]
        both = [(event, event.args or _NO_ARGS) for event in used]
        has_shapes = has_shapes or any(args.dims for _, args in both)
        values: dict[str, tuple[Any, list[Any]]] = {
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
        parts.append({name: np.array(held, dtype) for name, (dtype, held) in values.items()})
    columns = {name: np.concatenate([part.pop(name) for part in parts]) for name in list(parts[0])}
    order = np.lexsort((-columns["end"], columns["start"]))
    columns = {name: column[order] for name, column in columns.items()}
    on_device = np.isin(columns["kind"], DEVICE_KINDS)
    columns["device"] = np.where(on_device, np.minimum(columns["device"], _LARGEST_DEVICE), -1).astype(np.int32)
    columns["stream"] = np.where(on_device, columns["stream"], -1)
    columns["start"] -= columns["start"][0] if len(order) else 0.0
    columns["end"] = columns["start"] + np.maximum(columns["end"], 0.0)
    return EventTable(**columns, names=list(names)), count, has_shapes


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
