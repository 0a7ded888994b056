"""The steps that torch's profiler marked."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from hf_efficient.records.trace_host import TraceStep
from hf_efficient.trace.intervals import clipped_length, union
from hf_efficient.trace.kinds import DEVICE_KINDS, Kind
from hf_efficient.trace.table import EventTable, Floats, Ints
from hf_efficient.trace.waits import Waits

__all__ = ["StepMarks", "step_marks", "trace_steps"]

_STEP = re.compile(r"^ProfilerStep\s*#\s*(\d+)$")


@dataclass(frozen=True)
class StepMarks:
    """``ProfilerStep#N`` on the host, in the order of their start; times in microseconds."""

    number: Ints
    start: Floats
    end: Floats

    def __len__(self) -> int:
        return len(self.number)

    def index(self, moment: Floats) -> Ints:
        """In which of them each moment lies; -1: in none."""
        if not len(self):
            return np.full(len(moment), -1)
        found = np.searchsorted(self.start, moment, side="right") - 1
        return np.where((found >= 0) & (moment < self.end[found]), found, -1)


def step_marks(events: EventTable) -> StepMarks:
    """The steps of a trace; none where the profiler had no schedule."""
    numbers = {
        index: int(told[1]) for index, name in enumerate(events.names) if (told := _STEP.match(name)) is not None
    }
    rows = events.rows(Kind.ANNOTATION, Kind.OPERATOR)
    rows = rows[np.isin(events.name[rows], list(numbers))]
    number = np.array([numbers[name] for name in events.name[rows].tolist()], dtype=np.int64)
    return StepMarks(number, events.start[rows], events.end[rows])


def trace_steps(events: EventTable, marks: StepMarks, waits: Waits) -> tuple[TraceStep, ...]:
    """Each step: the host's time, the time in which at least one device worked, and the waits that began in it."""
    if not len(marks):
        return ()
    rows = events.rows(*DEVICE_KINDS)
    busy = clipped_length(union(events.start[rows], events.end[rows]), marks.start, marks.end) / 1e6
    inside = marks.index(waits.start)
    seconds = (waits.end - waits.start) / 1e6
    return tuple(
        TraceStep(
            number=int(marks.number[one]),
            start_seconds=float(marks.start[one]) / 1e6,
            seconds=float(marks.end[one] - marks.start[one]) / 1e6,
            busy_seconds=float(busy[one]) if len(rows) else None,
            syncs=int((inside == one).sum()),
            sync_seconds=float(seconds[inside == one].sum()),
        )
        for one in range(len(marks))
    )
