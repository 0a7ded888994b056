"""A large trace, made by writing a real one several times in a row, later each time."""

from __future__ import annotations

import gzip
import re
from functools import partial
from pathlib import Path

__all__ = ["write_repeated"]

_TIME = re.compile(rb'("ts":\s*)(\d+)')
_LINK = re.compile(rb'("(?:correlation|External id|id)":\s*)(\d+)')
_STEP = re.compile(rb"(ProfilerStep#)(\d+)")


def write_repeated(source: Path, target: Path, least_bytes: int) -> int:
    """Repeat the events of a trace until the file is large enough.

    Times, correlations and the numbers of steps go on from one repetition to the next.

    Args:
        source: a trace of torch's profiler, gzipped or plain.
        target: where the large one goes; gzipped where its name ends so.
        least_bytes: of JSON.

    Returns:
        How often the events were written.
    """
    data = source.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    start = re.search(rb'"traceEvents"\s*:\s*\[', text)
    assert start is not None
    end = text.rindex(b"}", 0, text.rindex(b"]")) + 1
    head, events, tail = text[: start.end()], text[start.end() : end], text[end:]
    if b'"traceName"' in tail:
        tail = b"]}"
    span = _span(events)
    links = 1 + max(int(found[2]) for found in _LINK.finditer(events))
    steps = 1 + max((int(found[2]) for found in _STEP.finditer(events)), default=0)
    with gzip.open(target, "wb", compresslevel=5) if target.suffix == ".gz" else target.open("wb") as file:
        file.write(head)
        written, count = len(head), 0
        while written < least_bytes:
            again = _later(events, count * span, count * links, count * steps)
            written += file.write((b"," if count else b"") + again)
            count += 1
        file.write(tail)
    return count


def _span(events: bytes) -> int:
    """Microseconds from the first to the last start, and a thousandth more."""
    times = [int(found[2]) for found in _TIME.finditer(events)]
    span = max(times) - min(times)
    return span + span // 1000 + 1


def _later(events: bytes, span: int, links: int, steps: int) -> bytes:
    for pattern, by in ((_TIME, span), (_LINK, links), (_STEP, steps)):
        events = pattern.sub(partial(_shifted, by=by), events)
    return events


def _shifted(found: re.Match[bytes], by: int) -> bytes:
    return found[1] + str(int(found[2]) + by).encode()
