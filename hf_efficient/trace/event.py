"""One event of a Chrome trace, and what of it is read."""

from __future__ import annotations

import re

import msgspec

__all__ = ["LIST_END", "Event", "EventArgs", "decoded"]

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
