"""The bytes of a trace, decompressed piece by piece.

One event of a Chrome trace, and what of it is read.

Parts of a trace that are no valid JSON: what can be read of them is.

Kineto has written ``nan`` and ``inf`` for figures that it could not compute, names of functions that are no UTF-8, and
control characters in strings; a process that dies leaves half an event. The first three are mended, what is left broken
is left out and counted.

The events of a trace, thousands at a time, in bounded memory.

A trace is one JSON object of hundreds of megabytes. It is cut where one event ends and the next begins, and each part
is decoded as a list of events. Where to cut is guessed (``}``, a comma, ``{``), and a wrong guess cannot pass: a part
that was cut inside an event or a string is no valid JSON. So whatever is decoded was cut rightly. Only a part that
cannot be decoded as a whole (the list ends in it, or something in it is broken) is looked at more closely.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from hf_efficient.errors import OutputError

PIECE_BYTES = 4 << 20
_GZIP = b"\x1f\x8b"
_GZIP_STREAM = 31  # zlib's wbits for a stream with gzip's head
_COMPRESSED_PIECE_BYTES = 256 << 10
_SMALL_PIECE_BYTES = 64


def json_pieces(path: Path) -> Iterator[bytes]:
    """The text of a file, at most ``PIECE_BYTES`` of it at a time.

    Its first bytes tell whether it is gzipped, not its name. Of a gzip stream that ends before its time, or is
    damaged, what came before is given.

    Raises:
        OutputError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == _GZIP
            file.seek(0)
            size = _COMPRESSED_PIECE_BYTES if compressed else PIECE_BYTES
            raw = iter(lambda: file.read(size), b"")
            yield from _decompressed(raw) if compressed else raw
    except OSError as error:
        told = error.strerror or type(error).__name__
        raise OutputError(f"{path} cannot be read: {told}; name a trace that torch's profiler wrote") from error


def _decompressed(raw: Iterator[bytes]) -> Iterator[bytes]:
    inflate = zlib.decompressobj(wbits=_GZIP_STREAM)
    for data in raw:
        while data:
            if inflate.eof:  # a gzip file may be several streams in a row
                if not data.startswith(_GZIP[:1]):
                    return
                inflate = zlib.decompressobj(wbits=_GZIP_STREAM)
            before = inflate.copy()
            try:
                piece = inflate.decompress(data, PIECE_BYTES)
            except zlib.error:
                yield from _until_damage(before, data)
                return
            if piece:
                yield piece
            data = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
    rest = inflate.flush()
    if rest:
        yield rest


def _until_damage(inflate: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """What can be had of data that zlib refuses as a whole."""
    for start in range(0, len(data), _SMALL_PIECE_BYTES):
        try:
            yield inflate.decompress(data[start : start + _SMALL_PIECE_BYTES])
        except zlib.error:
            return


_NO_SHAPES = msgspec.Raw()


class EventArgs(msgspec.Struct, gc=False):
    """What torch's profiler writes beside an event; numbers may be strings (ROCm), -1 where they are not told."""

    correlation: int | str | float | None = -1
    device: int | str | float | None = -1
    stream: int | str | float | None = -1
    bytes: int | str | float | None = -1
    size: int | str | float | None = -1
    call_stack: str | None = msgspec.field(name="Call stack", default=None)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NO_SHAPES)


class Event(msgspec.Struct, gc=False):
    """A complete event (``ph`` is ``X``) has a start ``ts`` and a length ``dur``, both in microseconds."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: str | int | float | None = None
    tid: str | int | float | None = None
    ts: float | None = None
    dur: float | None = None
    args: EventArgs | None = None


LIST_END = re.compile(rb"\}\s*\]")
_DECODER = msgspec.json.Decoder(list[Event])


def decoded(text: bytes) -> list[Event] | None:
    """Events with commas between them; None where the text is anything else."""
    try:
        return _DECODER.decode(b"[" + text + b"]")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


_BORDER = re.compile(rb"(?<=\})\s*,\s*(?=\{\s*\"(?:ph|cat|name|pid|tid|ts|args|id)\")")
_NO_NUMBER = re.compile(rb"(?<=[:\[,\s])-?(?:nan|inf|infinity)(?=[\s,\]\}])", re.IGNORECASE)
_CONTROL = re.compile(rb"[\x00-\x1f]")


def decode_broken(text: bytes) -> tuple[list[Event], bytes, bool, int]:
    """What can be read of a text that cannot be decoded as a whole.

    Returns:
        Its events, what follows the list of events where it ends in this text, whether it does, and how many pieces
        between two borders are no event.
    """
    found: list[Event] = []
    lost, start = 0, 0
    mended = _mended(text)
    for piece in _BORDER.split(mended):
        start = mended.index(piece, start)
        events = decoded(piece)
        if events is None:
            for end in LIST_END.finditer(piece):
                events = decoded(piece[: end.start() + 1])
                if events is not None:
                    return found + events, mended[start + end.end() :], True, lost
            lost += 1
        found += events or []
        start += len(piece)
    return found, b"", False, lost


def _mended(text: bytes) -> bytes:
    """Without control characters, wrong UTF-8, and words in place of numbers."""
    text = _CONTROL.sub(b" ", text)
    return _NO_NUMBER.sub(b"null", text.decode("utf-8", "replace").encode())


_LIST_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_BLANK = b" \t\r\n"
_MOST_HEAD_BYTES = 64 << 20
_LONG_EVENT_BYTES = 1 << 20
_MOST_EVENT_BYTES = 64 << 20
_MOST_BORDERS = 4
_MOST_ENDS = 64


class EventStream:
    """A trace file, read once.

    Attributes:
        head, tail: the JSON around the list of events: what the trace says about itself.
        read_bytes: of JSON.
        unreadable: pieces between two borders of events that are no event.
        truncated: the file ends before the list does.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head, self.tail = b"", b""
        self.read_bytes, self.unreadable = 0, 0
        self.truncated = False
        self._pieces = self._counted(json_pieces(path))

    def batches(self) -> Iterator[list[Event]]:
        """The events in the order of the file.

        Raises:
            OutputError: the file cannot be read, or holds no Chrome trace.
        """
        buffer = self._find_list()
        ended = False
        for piece in self._pieces:
            buffer += piece
            events, buffer, ended = self._decode(buffer)
            yield events
            if ended:
                break
        while not ended:  # a short file came with its head
            events, rest, ended = self._decode(buffer, at_end=True)
            if len(rest) == len(buffer):
                break
            yield events
            buffer = rest
        if ended:
            self.tail = buffer + b"".join(self._pieces)
        else:
            yield self._decode_last(buffer)
        self.truncated = not ended

    def _counted(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self.read_bytes += len(piece)
            yield piece

    def _find_list(self) -> bytes:
        """What follows the opening bracket of the list of events, as far as it was read."""
        buffer = b""
        for piece in self._pieces:
            buffer += piece
            start = buffer.lstrip(b"\xef\xbb\xbf" + _BLANK)
            if start[:1] == b"[":  # a bare list of events is a Chrome trace too
                return start[1:]
            found = _LIST_START.search(buffer)
            if found:
                self.head = buffer[: found.end() - 1]
                return buffer[found.end() :]
            if start[:1] not in (b"{", b"") or len(buffer) > _MOST_HEAD_BYTES:
                break
        raise OutputError(
            f"{self.path} is no Chrome trace: {_what_it_is(buffer)}; name a .json or .json.gz that torch's profiler "
            "wrote (export_chrome_trace, or tensorboard_trace_handler)"
        )

    def _decode(self, buffer: bytes, at_end: bool = False) -> tuple[list[Event], bytes, bool]:
        """Events at the start of the buffer, what is left of it, and whether the list has ended.

        Args:
            buffer: what was read and not yet decoded.
            at_end: no more comes; else a short buffer that cannot be decoded may hold a part of a long event.
        """
        buffer = buffer.lstrip(_BLANK + b",")
        if buffer[:1] == b"]":
            return [], buffer[1:], True
        last = border = _last_border(buffer, len(buffer))
        for _ in range(_MOST_BORDERS):  # one inside an event's arguments is no border between events
            if border and (events := decoded(buffer[:border])) is not None:
                return events, buffer[border:], False
            border = _last_border(buffer, border)
        for end in islice(LIST_END.finditer(buffer), _MOST_ENDS):
            if (events := decoded(buffer[: end.start() + 1])) is not None:
                return events, buffer[end.end() :], True
        if len(buffer) < (_MOST_EVENT_BYTES if not last else 0 if at_end else _LONG_EVENT_BYTES):
            return [], buffer, False
        events, rest, ended, lost = decode_broken(buffer[: last or len(buffer)])
        self.unreadable += lost
        return events, rest + buffer[last or len(buffer) :], ended

    def _decode_last(self, buffer: bytes) -> list[Event]:
        """The last event of a file that is cut off, where it is whole."""
        events = decoded(buffer.strip(_BLANK + b","))
        return events if events is not None else []


def _last_border(buffer: bytes, brace: int) -> int:
    """Where the last event before ``brace`` that is followed by another one ends; 0 where there is none."""
    while (brace := buffer.rfind(b"{", 0, brace)) > 0:
        before = buffer[max(0, brace - 64) : brace].rstrip(_BLANK)
        if before.endswith(b","):
            before = before[:-1].rstrip(_BLANK)
            if before.endswith(b"}"):
                return max(0, brace - 64) + len(before)
    return 0


def _what_it_is(buffer: bytes) -> str:
    if not buffer:
        return "it is empty"
    if buffer.lstrip(_BLANK)[:1] != b"{":
        return "it is no JSON object"
    return "it has no list traceEvents" if buffer.rstrip(_BLANK)[-1:] == b"}" else "it ends before its list of events"
