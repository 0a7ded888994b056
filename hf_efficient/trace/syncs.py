"""Where the host waited for a device, and what that cost the device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hf_efficient.records.trace_host import SyncSite
from hf_efficient.trace.host import HostWork
from hf_efficient.trace.intervals import gaps
from hf_efficient.trace.kinds import Kind
from hf_efficient.trace.sites import call_site
from hf_efficient.trace.steps import StepMarks
from hf_efficient.trace.table import EventTable, Floats
from hf_efficient.trace.waits import Waits
from hf_efficient.trace.work import DeviceWork

__all__ = ["sync_sites"]


def sync_sites(
    events: EventTable, waits: Waits, host: HostWork, devices: list[DeviceWork], steps: StepMarks
) -> tuple[SyncSite, ...]:
    """The waits by call, operator and place in the program, the costliest first."""
    idle = _idle_after(waits, devices)
    outside = steps.index(waits.start) < 0 if len(steps) else np.zeros(len(waits), dtype=bool)
    places: dict[tuple[str, str | None, str | None], list[int]] = {}
    for number, (row, operator) in enumerate(
        zip(waits.rows.tolist(), _outermost_operators(events, waits, host), strict=True)
    ):
        places.setdefault((events.names[events.name[row]], operator, call_site(events, host, row)), []).append(number)
    seconds = (waits.end - waits.start) / 1e6
    found = [
        SyncSite(
            call=call,
            operator=operator,
            site=site,
            count=len(own),
            seconds=float(seconds[own].sum()),
            longest_seconds=float(seconds[own].max()),
            idle_after_seconds=float(idle[own].sum()) / 1e6,
            outside_steps=int(outside[own].sum()),
        )
        for (call, operator, site), own in places.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.idle_after_seconds, -one.seconds)))


def _outermost_operators(events: EventTable, waits: Waits, host: HostWork) -> Iterator[str | None]:
    for node in host.work.nodes(waits.rows).tolist():
        around = [row for row in host.work.rows[host.work.chain(node)].tolist() if events.kind[row] == Kind.OPERATOR]
        names = [events.names[events.name[row]] for row in around]
        plain = [name for name in names if not name.startswith("autograd::engine")]
        yield (plain or names or [None])[-1]


def _idle_after(waits: Waits, devices: list[DeviceWork]) -> Floats:
    """The gaps of all devices that began while the host waited, in microseconds; each counts for one wait."""
    idle = np.zeros(len(waits))
    if not len(waits):
        return idle
    for work in devices:
        found = gaps(work.start, work.end)
        wait = np.searchsorted(waits.start, found.start, side="right") - 1
        inside = (wait >= 0) & (found.start <= waits.end[wait])
        np.add.at(idle, wait[inside], found.lengths[inside])
    return idle
