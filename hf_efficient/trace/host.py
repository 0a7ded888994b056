"""What the host did: operators, steps, and where it waited for a device."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hf_efficient.records.trace import KERNEL_FAMILIES, HostBreakdown, OperatorTime, SyncSite, TraceStep
from hf_efficient.trace.families import OPTIMIZER, family_times, operator_family
from hf_efficient.trace.read import DEVICE_KINDS, EventTable, Floats, Ints, Kind
from hf_efficient.trace.timeline import Gaps, Nest, clipped_length, nest, union

_MOST_OPERATORS = 15
_STEP = re.compile(r"^ProfilerStep\s*#\s*(\d+)$")
_OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
# Calls that return when the device has done what was asked before. cudaFree waits for the whole device.
_WAITS = re.compile(
    r"^(cuda|hip)(Stream|Device|Event)Synchronize|^cu(Stream|Ctx|Event)Synchronize|^(cuda|hip)Free$|^(cuda|hip)Memcpy$"
    r"|^hipMemcpyWithStream$|^urQueueFinish|^urEventWait"
)
_ASYNC_COPY = re.compile(r"^(cuda|hip|cu)Memcpy\w*Async")
_TO_PAGEABLE = re.compile(r"DtoH.*Pageable|DeviceToHost.*Pageable")
# ``train.py(12): compute_loss``; built-in functions and ``nn.Module: Linear_3`` have no file.
_FUNCTION = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
_INSTALLED = re.compile(r"(site|dist)-packages/|^torch/|/torch/|^<|lib/python3|^(threading|contextlib|runpy)\.py")


@dataclass(frozen=True)
class HostWork:
    """The host's side of a trace; trees are built when they are first asked for."""

    events: EventTable

    @cached_property
    def work(self) -> Nest:
        return nest(self.events, Kind.OPERATOR, Kind.ANNOTATION, Kind.CALL)

    @cached_property
    def everything(self) -> Nest:
        if not (self.events.kind == Kind.PYTHON).any():
            return self.work
        return nest(self.events, Kind.OPERATOR, Kind.ANNOTATION, Kind.CALL, Kind.PYTHON)

    @cached_property
    def operator(self) -> Ints:
        """Of each node of ``work`` the row of the innermost operator around it, itself among them; -1: none."""
        rows = self.work.rows
        return self.work.inherited(np.where(self.events.kind[rows] == Kind.OPERATOR, rows, -1))

    @cached_property
    def in_optimizer(self) -> Ints:
        """Of each node of ``work`` the row of the optimizer's step that it lies in; -1: none."""
        rows = self.work.rows
        steps = np.isin(self.events.name[rows], self.events.named(_OPTIMIZER_STEP))
        return self.work.inherited(np.where(steps, rows, -1))

    def around(self, calls: Ints, values: Ints) -> Ints:
        """Of ``values`` (one for each node of ``work``) those of these rows of calls; -1 for a row of -1."""
        found = np.full(len(calls), -1)
        found[calls >= 0] = values[self.work.node_of_row[calls[calls >= 0]]]
        return found

    def functions(self, row: int) -> list[str]:
        """Names of the Python functions around an event, the innermost first."""
        events, rows = self.events, self.everything.chain(row)
        around = (events.kind[rows] == Kind.PYTHON) & (events.end[rows] > events.start[row])
        return [events.names[name] for name in events.name[rows[around]].tolist()]


def host_breakdown(host: HostWork) -> HostBreakdown | None:
    events, tree = host.events, host.work
    nodes = np.flatnonzero(events.kind[tree.rows] == Kind.OPERATOR)
    if not len(nodes):
        return None
    name_of = events.name[tree.rows]
    names, place = np.unique(name_of[nodes], return_inverse=True)
    alone = tree.self_times()[nodes]
    # A call directly inside one of the same operator would be counted twice.
    parent = tree.parent[nodes]
    outermost = (parent < 0) | (name_of[np.maximum(parent, 0)] != name_of[nodes])
    lengths = np.where(outermost, tree.end[nodes] - tree.start[nodes], 0.0)
    by_name = np.array([KERNEL_FAMILIES.index(operator_family(events.names[name])) for name in names.tolist()])
    self_seconds = np.bincount(place, alone) / 1e6
    total_seconds = np.bincount(place, lengths) / 1e6
    total = float(self_seconds.sum())
    return HostBreakdown(
        threads=len(np.unique(tree.thread[nodes])),
        operator_seconds=total,
        families=family_times(alone, np.where(host.in_optimizer[nodes] >= 0, OPTIMIZER, by_name[place])),
        operators=tuple(
            OperatorTime(
                name=events.names[names[one]],
                family=KERNEL_FAMILIES[by_name[one]],
                self_seconds=float(self_seconds[one]),
                share=float(self_seconds[one]) / total if total else 0.0,
                total_seconds=float(total_seconds[one]),
                count=int((place == one).sum()),
            )
            for one in np.argsort(-self_seconds, kind="stable")[:_MOST_OPERATORS].tolist()
        ),
    )


@dataclass(frozen=True)
class StepMarks:
    """``ProfilerStep#N`` on the host, in the order of their start; times in microseconds."""

    number: Ints
    start: Floats
    end: Floats

    def index(self, moment: Floats) -> Ints:
        """In which of them each moment lies; -1: in none."""
        if not len(self.number):
            return np.full(len(moment), -1)
        found = np.searchsorted(self.start, moment, side="right") - 1
        return np.where((found >= 0) & (moment < self.end[found]), found, -1)


def step_marks(events: EventTable) -> StepMarks:
    rows = events.rows(Kind.ANNOTATION, Kind.OPERATOR)
    rows = rows[np.isin(events.name[rows], events.named(_STEP))]
    numbers = [int(events.names[name].split("#")[1]) for name in events.name[rows].tolist()]
    return StepMarks(np.array(numbers, dtype=np.int64), events.start[rows], events.end[rows])


def trace_steps(events: EventTable, marks: StepMarks, waits: Ints) -> tuple[TraceStep, ...]:
    rows = events.rows(*DEVICE_KINDS)
    busy = clipped_length(union(events.start[rows], events.end[rows]), marks.start, marks.end) / 1e6
    inside = marks.index(events.start[waits])
    seconds = (events.end[waits] - events.start[waits]) / 1e6
    return tuple(
        TraceStep(
            number=int(marks.number[one]),
            start_seconds=float(marks.start[one]) / 1e6,
            seconds=float(marks.end[one] - marks.start[one]) / 1e6,
            busy_seconds=float(busy[one]) if len(rows) else None,
            syncs=int((inside == one).sum()),
            sync_seconds=float(seconds[inside == one].sum()),
        )
        for one in range(len(marks.number))
    )


def host_waits(events: EventTable) -> Ints:
    """Rows of every call that synchronises, and of every "asynchronous" copy to pageable memory, which waits too."""
    calls, copies = events.rows(Kind.CALL), events.rows(Kind.COPY)
    waiting = np.isin(events.name[calls], events.named(_WAITS))
    to_pageable = events.correlation[copies[np.isin(events.name[copies], events.named(_TO_PAGEABLE))]]
    copying = np.isin(events.name[calls], events.named(_ASYNC_COPY)) & np.isin(events.correlation[calls], to_pageable)
    return calls[waiting | copying]


def sync_sites(host: HostWork, waits: Ints, gaps: Sequence[Gaps], steps: StepMarks) -> tuple[SyncSite, ...]:
    """The waits by call, operator and place in the program, the costliest first; ``gaps`` of each device."""
    events = host.events
    start, seconds = events.start[waits], (events.end[waits] - events.start[waits]) / 1e6
    idle = _idle_after(start, events.end[waits], gaps)
    outside = steps.index(start) < 0 if len(steps.number) else np.zeros(len(waits), dtype=bool)
    places: dict[tuple[str, str | None, str | None], list[int]] = {}
    for number, row in enumerate(waits.tolist()):
        place = (events.names[events.name[row]], _outermost_operator(host, row), function_site(host.functions(row)))
        places.setdefault(place, []).append(number)
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


def _outermost_operator(host: HostWork, row: int) -> str | None:
    events, rows = host.events, host.work.chain(row)
    names = [events.names[name] for name in events.name[rows[events.kind[rows] == Kind.OPERATOR]].tolist()]
    plain = [name for name in names if not name.startswith("autograd::engine")]
    return (plain or names or [None])[-1]


def _idle_after(start: Floats, end: Floats, gaps: Sequence[Gaps]) -> Floats:
    """The gaps of all devices that began while the host waited, in microseconds; each counts for one wait."""
    idle = np.zeros(len(start))
    for found in gaps if len(start) else ():
        wait = np.searchsorted(start, found.start, side="right") - 1
        inside = (wait >= 0) & (found.start <= end[wait])
        np.add.at(idle, wait[inside], found.lengths[inside])
    return idle


def function_site(functions: list[str]) -> str | None:
    """``file:line (function)``, at the definition, of the innermost of the user's own files, else of any file."""
    placed = [told for function in functions if (told := _FUNCTION.match(function)) is not None]
    own = [told for told in placed if not _INSTALLED.search(told["file"])]
    return "{file}:{line} ({function})".format(**(own or placed)[0].groupdict()) if placed else None
