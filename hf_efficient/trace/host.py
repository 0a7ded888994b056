"""What the host's threads did: operators, and what was around them.

The calls of the runtime in which the host waited for a device.

Where in the program a call was made, from the Python functions that the profiler recorded.

The steps that torch's profiler marked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hf_efficient.records.trace import TraceStep
from hf_efficient.trace.intervals import Nest, clipped_length, nest, union
from hf_efficient.trace.table import DEVICE_KINDS, EventTable, Floats, Ints, Kind

_OPTIMIZER = "Optimizer.step#"


@dataclass(frozen=True)
class HostWork:
    """The host's side of a trace; trees are built when they are first asked for."""

    events: EventTable

    @cached_property
    def work(self) -> Nest:
        """Operators, annotations and calls of the runtime."""
        return nest(self.events, Kind.OPERATOR, Kind.ANNOTATION, Kind.CALL)

    @cached_property
    def functions(self) -> Nest:
        """Python functions."""
        return nest(self.events, Kind.PYTHON)

    @cached_property
    def everything(self) -> Nest:
        """Both in one tree."""
        if not len(self.functions):
            return self.work
        return nest(self.events, Kind.OPERATOR, Kind.ANNOTATION, Kind.CALL, Kind.PYTHON)

    @cached_property
    def operator(self) -> Ints:
        """Of each node of ``work`` the row of the innermost operator around it, itself among them; -1: none."""
        rows = self.work.rows
        return self.work.inherited(np.where(self.events.kind[rows] == Kind.OPERATOR, rows, -1))

    @cached_property
    def in_optimizer(self) -> Ints:
        """Of each node of ``work`` whether it lies in an optimizer's step: the row of that, -1: it does not."""
        names = [number for number, name in enumerate(self.events.names) if name.startswith(_OPTIMIZER)]
        rows = self.work.rows
        return self.work.inherited(np.where(np.isin(self.events.name[rows], names), rows, -1))

    def around(self, calls: Ints, values: Ints) -> Ints:
        """A value of ``work`` for each of these rows of calls; -1 for a row of -1.

        Args:
            calls: rows of calls of the runtime.
            values: of each node of ``work``.
        """
        found = np.full(len(calls), -1)
        known = calls >= 0
        found[known] = values[self.work.nodes(calls[known])]
        return found


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


# ``train.py(12): compute_loss``; built-in functions and ``nn.Module: Linear_3`` have no file.
_FUNCTION = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
_INSTALLED = re.compile(r"(site|dist)-packages/|^torch/|/torch/|^<|lib/python3|^(threading|contextlib|runpy)\.py")


def call_site(events: EventTable, host: HostWork, row: int) -> str | None:
    """``file:line (function)`` around an event of the host; None where nothing was recorded around it.

    The innermost function of the user's own files; where there is none, the innermost function with a file. The line is
    the one at which the function is defined: the profiler records no other.
    """
    return function_site(_stack(events, host, row))


def function_site(functions: list[str]) -> str | None:
    """The place among these functions, the innermost first, that a user would look at."""
    placed = [told for function in functions if (told := _FUNCTION.match(function)) is not None]
    own = [told for told in placed if not _INSTALLED.search(told["file"])]
    if not placed:
        return None
    chosen = (own or placed)[0]
    return f"{chosen['file']}:{chosen['line']} ({chosen['function']})"


def _stack(events: EventTable, host: HostWork, row: int) -> list[str]:
    """Names of the Python functions around an event, the innermost first; or the call stack that an operator has."""
    if len(host.functions):
        node = int(host.functions.innermost(events.thread[[row]].astype(np.int64), events.start[[row]])[0])
        rows = host.functions.rows[host.functions.chain(node)]
        return [events.names[name] for name in events.name[rows].tolist()]
    rows = host.work.rows[host.work.chain(int(host.work.nodes(np.array([row]))[0]))]
    stacks = [stack for stack in events.stack[rows].tolist() if stack >= 0]
    return events.names[stacks[0]].split(";") if stacks else []


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
