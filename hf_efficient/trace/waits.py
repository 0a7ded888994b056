"""The calls of the runtime in which the host waited for a device."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from hf_efficient.trace.kinds import Kind
from hf_efficient.trace.table import EventTable, Floats, Ints

__all__ = ["Waits", "host_waits"]

# Calls that return when the device has done what was asked before. cudaFree waits for the whole device.
_WAITS = re.compile(
    r"^(cuda|hip)(Stream|Device|Event)Synchronize|^cu(Stream|Ctx|Event)Synchronize|^(cuda|hip)Free$|^(cuda|hip)Memcpy$"
    r"|^hipMemcpyWithStream$|^urQueueFinish|^urEventWait"
)
_ASYNC_COPY = re.compile(r"^(cuda|hip|cu)Memcpy\w*Async")
_TO_PAGEABLE = re.compile(r"DtoH.*Pageable|DeviceToHost.*Pageable")


@dataclass(frozen=True)
class Waits:
    """Calls in which the host waited, in the order of their start; times in microseconds."""

    rows: Ints
    start: Floats
    end: Floats

    def __len__(self) -> int:
        return len(self.rows)


def host_waits(events: EventTable) -> Waits:
    """Every call that synchronises, and every asynchronous copy to pageable memory, which is not asynchronous."""
    calls = events.rows(Kind.CALL)
    waiting = [number for number, name in enumerate(events.names) if _WAITS.search(name)]
    rows = np.union1d(calls[np.isin(events.name[calls], waiting)], _blocking_copies(events, calls))
    return Waits(rows, events.start[rows], events.end[rows])


def _blocking_copies(events: EventTable, calls: Ints) -> Ints:
    """The calls of asynchronous copies from a device to pageable memory."""
    to_pageable = [number for number, name in enumerate(events.names) if _TO_PAGEABLE.search(name)]
    copies = events.rows(Kind.COPY)
    correlations = events.correlation[copies[np.isin(events.name[copies], to_pageable)]]
    copying = [number for number, name in enumerate(events.names) if _ASYNC_COPY.search(name)]
    own: Ints = calls[np.isin(events.name[calls], copying) & np.isin(events.correlation[calls], correlations)]
    return own
