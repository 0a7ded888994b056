"""Parts of a trace that are no valid JSON: what can be read of them is.

Kineto has written ``nan`` and ``inf`` for figures that it could not compute, names of functions that are no UTF-8, and
control characters in strings; a process that dies leaves half an event. The first three are mended, what is left broken
is left out and counted.
"""

from __future__ import annotations

import re

from hf_efficient.trace.event import LIST_END, Event, decoded

__all__ = ["decode_broken"]

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
