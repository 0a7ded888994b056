"""The events of a trace, thousands at a time, in bounded memory.

A trace is one JSON object of hundreds of megabytes. It is cut where one event ends and the next begins, and each part
is decoded as a list of events. Where to cut is guessed (``}``, a comma, ``{``), and a wrong guess cannot pass: a part
that was cut inside an event or a string is no valid JSON. So whatever is decoded was cut rightly. Only a part that
cannot be decoded as a whole (the list ends in it, or something in it is broken) is looked at more closely.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from hf_efficient.errors import OutputError
from hf_efficient.trace.broken import decode_broken
from hf_efficient.trace.event import LIST_END, Event, decoded
from hf_efficient.trace.source import json_pieces

__all__ = ["EventStream"]

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
