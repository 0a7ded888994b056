"""What one device, or one of its streams, ran."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hf_efficient.trace.families import COMMUNICATION
from hf_efficient.trace.intervals import Spans, union
from hf_efficient.trace.kinds import Kind
from hf_efficient.trace.links import submitting_calls
from hf_efficient.trace.table import EventTable, Floats, Ints

__all__ = ["DeviceWork", "device_work"]

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class DeviceWork:
    """Kernels, copies and memsets in the order of their start; all arrays have one element for each.

    Attributes:
        events: of the whole trace.
        rows: of these in ``events``.
        calls: rows of the calls of the runtime that submitted them; -1: not in the trace.
        start, end: microseconds since the first event of the trace.
        submitted: when the call began; NaN where it is not in the trace.
        computes: a kernel that does not communicate.
        communicates: a kernel that does.
    """

    events: EventTable
    rows: Ints
    calls: Ints
    start: Floats
    end: Floats
    submitted: Floats
    computes: Mask
    communicates: Mask

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def window(self) -> float:
        """From the first start to the last end, in microseconds."""
        return float(self.end.max() - self.start[0])

    def spans(self, chosen: Mask | None = None) -> Spans:
        """When any of them ran, or any of the chosen ones."""
        return union(self.start, self.end) if chosen is None else union(self.start[chosen], self.end[chosen])

    def only(self, chosen: Mask) -> DeviceWork:
        """The chosen ones."""
        return DeviceWork(
            self.events,
            self.rows[chosen],
            self.calls[chosen],
            self.start[chosen],
            self.end[chosen],
            self.submitted[chosen],
            self.computes[chosen],
            self.communicates[chosen],
        )


def device_work(events: EventTable, rows: Ints) -> DeviceWork:
    """What lies in these rows of a trace, all of them a device's."""
    calls = submitting_calls(events, rows)
    names = np.unique(events.name[rows])
    sends = [name for name in names.tolist() if COMMUNICATION.search(events.names[name])]
    kernel = events.kind[rows] == Kind.KERNEL
    communicates = kernel & np.isin(events.name[rows], sends)
    return DeviceWork(
        events=events,
        rows=rows,
        calls=calls,
        start=events.start[rows],
        end=events.end[rows],
        submitted=np.where(calls >= 0, events.start[np.maximum(calls, 0)], np.nan),
        computes=kernel & ~communicates,
        communicates=communicates,
    )
