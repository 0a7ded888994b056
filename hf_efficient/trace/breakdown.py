"""The operators on the host, by their self time.

Where the host waited for a device, and what that cost the device.

What a reader should know before the figures of a trace.

The breakdown of a trace: every part of it put together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from hf_efficient.records.trace import (
    KERNEL_FAMILIES,
    DeviceBreakdown,
    HostBreakdown,
    OperatorTime,
    SyncSite,
    TraceBreakdown,
)
from hf_efficient.trace.device import (
    DeviceWork,
    communication,
    copy_kinds,
    device_busy,
    device_work,
    family_times,
    kernel_families,
    kernel_times,
    launch_breakdown,
    longest_gaps,
    stream_breakdowns,
)
from hf_efficient.trace.families import operator_family
from hf_efficient.trace.host import HostWork, StepMarks, Waits, call_site, host_waits, step_marks, trace_steps
from hf_efficient.trace.intervals import Nest, gaps
from hf_efficient.trace.table import EventTable, Floats, Ints, Kind, Trace, read_trace

_MOST_OPERATORS = 15
_OPTIMIZER = KERNEL_FAMILIES.index("optimizer")


def host_breakdown(host: HostWork) -> HostBreakdown | None:
    """All threads together; None where the trace has no operators."""
    events, tree = host.events, host.work
    is_operator = events.kind[tree.rows] == Kind.OPERATOR
    if not is_operator.any():
        return None
    nodes = np.flatnonzero(is_operator)
    names, place = np.unique(events.name[tree.rows[nodes]], return_inverse=True)
    alone = tree.self_times()[nodes]
    outer = _outermost(tree, events.name[tree.rows].astype(np.int64), nodes)
    lengths = np.where(outer, tree.end[nodes] - tree.start[nodes], 0.0)
    by_name = np.array([KERNEL_FAMILIES.index(operator_family(events.names[name])) for name in names.tolist()])
    stepping = host.in_optimizer[nodes] >= 0
    self_seconds = np.bincount(place, alone) / 1e6
    total_seconds = np.bincount(place, lengths) / 1e6
    counts = np.bincount(place)
    total = float(self_seconds.sum())
    return HostBreakdown(
        threads=len(np.unique(tree.thread[nodes])),
        operator_seconds=total,
        families=family_times(alone, np.where(stepping, _OPTIMIZER, by_name[place])),
        operators=tuple(
            OperatorTime(
                name=events.names[names[one]],
                family=KERNEL_FAMILIES[int(by_name[one])],
                self_seconds=float(self_seconds[one]),
                share=float(self_seconds[one]) / total if total else 0.0,
                total_seconds=float(total_seconds[one]),
                count=int(counts[one]),
            )
            for one in np.argsort(-self_seconds, kind="stable")[:_MOST_OPERATORS].tolist()
        ),
    )


def _outermost(tree: Nest, names: Ints, nodes: Ints) -> np.ndarray:
    """Which nodes are not directly inside one of the same name: those would be counted twice."""
    parent = tree.parent[nodes]
    directly: np.ndarray = (parent < 0) | (names[np.maximum(parent, 0)] != names[nodes])
    return directly


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


NO_DEVICE_EVENTS = (
    "There are no device events in this trace: it tells of the host's operators alone. For the kernels of a GPU, "
    "profile on a machine that has one, with ProfilerActivity.CUDA among the activities."
)
_MANY_UNKNOWN = 0.05
_MUCH_OVERHEAD = 0.01


def trace_remarks(trace: Trace, devices: Iterable[DeviceBreakdown]) -> tuple[str, ...]:
    """A sentence each."""
    return (*_of_file(trace), *_of_events(trace, list(devices)))


def _of_file(trace: Trace) -> Iterator[str]:
    if trace.file.truncated:
        yield "The file ends before its list of events does: what follows is of the part that was written."
    if trace.file.unreadable_events:
        yield f"{trace.file.unreadable_events:,} events could not be read and are left out."


def _of_events(trace: Trace, devices: list[DeviceBreakdown]) -> Iterator[str]:
    events = trace.events
    if not len(events):
        yield "The trace holds no events."
        return
    if not devices:
        yield NO_DEVICE_EVENTS
    if len(devices) > 1:
        yield "Several devices lie in this trace; each has a breakdown of its own."
    idle = sum(one.busy.idle_seconds for one in devices)
    unknown = sum(one.busy.idle.unknown_seconds for one in devices)
    if idle and unknown / idle > _MANY_UNKNOWN:
        yield (
            f"Of {unknown / idle:.0%} of the idle time the trace does not hold the call that ended it: it counts as "
            "other. Profile the CPU's activities too."
        )
    overhead = events.rows(Kind.OVERHEAD)
    seconds = float((events.end - events.start)[overhead].sum()) / 1e6
    if len(overhead) and seconds > _MUCH_OVERHEAD * float(events.end.max()) / 1e6:
        names = sorted({events.names[name] for name in np.unique(events.name[overhead]).tolist()})
        yield f"{seconds:.3f} s are the profiler's own overhead or the loading of kernels: {', '.join(names)}."


def trace_breakdown(path: Path) -> TraceBreakdown:
    """Read a trace and break it down.

    Raises:
        OutputError: the file cannot be read, or is no Chrome trace.
    """
    return break_down(read_trace(path))


def break_down(trace: Trace) -> TraceBreakdown:
    """Where the time of a trace went."""
    events = trace.events
    host, steps, waits = HostWork(events), step_marks(events), host_waits(events)
    works = {device: device_work(events, events.device_rows(device)) for device in events.devices()}
    devices = tuple(
        _device(device, trace.file.device_names.get(device), work, host, steps) for device, work in works.items()
    )
    return TraceBreakdown(
        file=trace.file,
        window_seconds=float(events.end.max()) / 1e6 if len(events) else 0.0,
        devices=devices,
        host=host_breakdown(host),
        syncs=sync_sites(events, waits, host, list(works.values()), steps),
        steps=trace_steps(events, steps, waits),
        remarks=trace_remarks(trace, devices),
    )


def _device(device: int, name: str | None, work: DeviceWork, host: HostWork, steps: StepMarks) -> DeviceBreakdown:
    families = kernel_families(work, host)
    return DeviceBreakdown(
        device=device,
        name=name,
        first_event_seconds=float(work.start[0]) / 1e6,
        busy=device_busy(work),
        streams=stream_breakdowns(work),
        families=family_times(work.end - work.start, families),
        kernels=kernel_times(work, families, host),
        launches=launch_breakdown(work),
        copies=copy_kinds(work),
        communication=communication(work),
        gaps=longest_gaps(work, host, steps),
    )
