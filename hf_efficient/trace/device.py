"""Which call of the runtime submitted what a device ran.

What one device, or one of its streams, ran.

Why a device ran nothing: every gap between two of its events has one cause.

A gap begins when the last running event of all streams ends, and ends with the next event of any stream. Be ``s`` the
start of the call of the runtime that submitted that next event.

- **launch-bound**: the gap is shorter than ``SHORT_GAP_SECONDS``. In so short a time the host can do no more than
  dispatch one operator and submit its kernel: kernels are shorter than their own submission, or run back to back and
  the device needs that long between them. Larger kernels help (a larger micro-batch, fusion), or CUDA graphs.
- **host-bound**: it is longer, and the host had not submitted the next event when it began (``s`` lies in the gap). The
  device waited for the host, which did something else: fetched data, waited for the device, logged, ran Python.
- **other**: it is longer, and the next event had been submitted before (``s`` lies before the gap). The device waited
  for another stream, an event, memory, or another rank. A gap whose next event has no call in the trace is counted here
  too and told apart.

HolisticTraceAnalysis (0.5.0, ``BreakdownAnalysis.get_idle_time_breakdown``, read on 2026-11-20) asks the questions the
other way round, and of each stream alone: *host wait* where ``s`` lies in the gap however short that is, *kernel wait*
of the rest below 30 microseconds, *other*. Per stream, the time in which another stream works is idle to it; and a loop
of small kernels, each submitted just after the last one ended, counts as waiting for the host, so that it cannot be
told from slow data. ``stream_idle`` gives its figures.

When a device, and each of its streams, ran something, and when it only communicated.

Copies by direction, and from and to which kind of the host's memory.

How long kernels are, and how they are submitted.

The time of kernels by family, and the kernels that take longest.

The longest gaps of a device, and what the host did in them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from hf_efficient.records.trace import (
    KERNEL_FAMILIES,
    BusyBreakdown,
    Communication,
    CopyKind,
    DeviceGap,
    FamilyTime,
    IdleCause,
    IdleSplit,
    KernelTime,
    LaunchBreakdown,
    Percentiles,
    StreamBreakdown,
)
from hf_efficient.trace.families import COMMUNICATION, kernel_family, short_name
from hf_efficient.trace.host import HostWork, StepMarks
from hf_efficient.trace.intervals import Gaps, Spans, gaps, overlap, union
from hf_efficient.trace.table import EventTable, Floats, Ints, Kind


def submitting_calls(events: EventTable, rows: Ints) -> Ints:
    """The row of the call with the same correlation, for each of these rows; -1 where the trace does not hold it.

    Where a correlation is used twice the later call before the work counts, or else the first: a call that launches a
    kernel through the driver has one event in each of the two interfaces.
    """
    calls = events.rows(Kind.CALL)
    calls = calls[events.correlation[calls] >= 0]
    if not len(calls):
        return np.full(len(rows), -1)
    calls = calls[np.argsort(events.correlation[calls], kind="stable")]
    keys = events.correlation[calls]
    wanted = events.correlation[rows]
    found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where((keys[found] == wanted) & (wanted >= 0), calls[found], -1)


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


# HolisticTraceAnalysis' own threshold: consecutive_kernel_delay of get_idle_time_breakdown.
SHORT_GAP_SECONDS = 30e-6
CAUSES: tuple[IdleCause, ...] = ("host_bound", "launch_bound", "other")
_HOST_BOUND, _LAUNCH_BOUND, _OTHER = range(3)


def gap_causes(found: Gaps, work: DeviceWork) -> Ints:
    """The cause of each gap of a device, as an index into ``CAUSES``."""
    short = found.lengths < SHORT_GAP_SECONDS * 1e6
    late = work.submitted[found.after] > found.start  # False where it is not known
    return np.where(short, _LAUNCH_BOUND, np.where(late, _HOST_BOUND, _OTHER))


def device_idle(work: DeviceWork) -> IdleSplit:
    """The idle time of all streams of a device together, by cause."""
    found = gaps(work.start, work.end)
    return _added_up(found.lengths, gap_causes(found, work), np.isnan(work.submitted[found.after]))


def stream_idle(work: DeviceWork) -> IdleSplit:
    """The idle time of one stream as HolisticTraceAnalysis splits it."""
    begin, end = work.end[:-1], work.start[1:]
    lengths = np.maximum(end - begin, 0.0)
    late = work.submitted[1:] > begin
    short = lengths < SHORT_GAP_SECONDS * 1e6
    causes = np.where(late, _HOST_BOUND, np.where(short, _LAUNCH_BOUND, _OTHER))
    gap = lengths > 0
    return _added_up(lengths[gap], causes[gap], np.isnan(work.submitted[1:])[gap])


def _added_up(lengths: Floats, causes: Ints, unknown: npt.NDArray[np.bool_]) -> IdleSplit:
    seconds = np.bincount(causes, lengths, minlength=3) / 1e6
    counts = np.bincount(causes, minlength=3)
    return IdleSplit(
        host_bound_seconds=float(seconds[_HOST_BOUND]),
        launch_bound_seconds=float(seconds[_LAUNCH_BOUND]),
        other_seconds=float(seconds[_OTHER]),
        unknown_seconds=float(lengths[unknown & (causes == _OTHER)].sum()) / 1e6,
        host_bound_gaps=int(counts[_HOST_BOUND]),
        launch_bound_gaps=int(counts[_LAUNCH_BOUND]),
        other_gaps=int(counts[_OTHER]),
    )


def device_busy(work: DeviceWork) -> BusyBreakdown:
    """All streams of a device together."""
    return _busy(work, device_idle(work))


def stream_breakdowns(work: DeviceWork) -> tuple[StreamBreakdown, ...]:
    """Each stream of a device alone, the busiest first."""
    streams = work.events.stream[work.rows]
    found = []
    for stream in np.unique(streams).tolist():
        own = work.only(streams == stream)
        found.append(StreamBreakdown(stream=stream, events=len(own), busy=_busy(own, stream_idle(own))))
    return tuple(sorted(found, key=lambda one: -one.busy.busy_seconds))


def communication(work: DeviceWork) -> Communication | None:
    """The communication of a device, and how much of it its computation hides; None where there is none."""
    if not work.communicates.any():
        return None
    talking = work.spans(work.communicates)
    seconds, both = talking.length / 1e6, overlap(talking, work.spans(work.computes)) / 1e6
    return Communication(
        kernels=int(work.communicates.sum()),
        seconds=seconds,
        overlapped_seconds=both,
        exposed_seconds=seconds - both,
        overlap_share=both / seconds if seconds else 0.0,
        exposed_share=(seconds - both) * 1e6 / work.window if work.window else 0.0,
    )


def _busy(work: DeviceWork, idle: IdleSplit) -> BusyBreakdown:
    window, busy = work.window / 1e6, work.spans().length / 1e6
    return BusyBreakdown(
        window_seconds=window,
        busy_seconds=busy,
        idle_seconds=window - busy,
        idle_share=(window - busy) / window if window else 0.0,
        compute_seconds=work.spans(work.computes).length / 1e6,
        idle=idle,
    )


SMALL_COPY_BYTES = 64 << 10
_DIRECTION = re.compile(r"\b([HDAP])to([HDAP])\b")
_SPELLED = {
    "HostToDevice": "HtoD", "DeviceToHost": "DtoH", "DeviceToDevice": "DtoD", "PeerToPeer": "PtoP",
}  # fmt: skip

HostMemory = Literal["pinned", "pageable"] | None


def copy_kinds(work: DeviceWork) -> tuple[CopyKind, ...]:
    """The copies of a device, the direction that takes longest first."""
    copies = work.only(work.events.kind[work.rows] == Kind.COPY)
    names = work.events.names
    kinds = [copy_of_name(names[name]) for name in work.events.name[copies.rows].tolist()]
    found = [_kind(copies.only(np.array([one == kind for one in kinds])), *kind) for kind in dict.fromkeys(kinds)]
    return tuple(sorted(found, key=lambda one: -one.seconds))


def copy_of_name(name: str) -> tuple[str, HostMemory]:
    """``Memcpy HtoD (Pageable -> Device)``: ``("HtoD", "pageable")``; what a name does not tell is unknown, or None."""
    told = _DIRECTION.search(name)
    direction = told[0] if told else next((short for long, short in _SPELLED.items() if long in name), "unknown")
    if "Pageable" in name:
        return direction, "pageable"
    return direction, "pinned" if "Pinned" in name else None


def _kind(copies: DeviceWork, direction: str, host_memory: HostMemory) -> CopyKind:
    lengths = (copies.end - copies.start) / 1e6
    told = _bytes(copies)
    known = told >= 0
    calls = np.unique(copies.calls[copies.calls >= 0])
    timed = float(lengths[known].sum())
    return CopyKind(
        direction=direction,
        host_memory=host_memory,
        count=len(copies),
        seconds=float(lengths.sum()),
        bytes=int(told[known].sum()) if known.any() else None,
        untold_bytes_count=int((~known).sum()),
        bytes_per_second=float(told[known].sum()) / timed if timed else None,
        small_count=int((told[known] <= SMALL_COPY_BYTES).sum()),
        call_seconds=float((copies.events.end[calls] - copies.events.start[calls]).sum()) / 1e6 if len(calls) else None,
    )


def _bytes(copies: DeviceWork) -> Ints:
    """As the copy tells, or (ROCm) the call that submitted it; -1: neither."""
    own = copies.events.bytes[copies.rows]
    return np.where((own < 0) & (copies.calls >= 0), copies.events.bytes[np.maximum(copies.calls, 0)], own)


# About what the host needs to submit one from eager PyTorch: a kernel that is shorter leaves the device waiting.
SHORT_KERNEL_SECONDS = 10e-6
_GRAPH_LAUNCH = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")


def launch_breakdown(work: DeviceWork) -> LaunchBreakdown | None:
    """Of the kernels of a device; None where it ran none."""
    kernels = work.only(work.computes | work.communicates)
    if not len(kernels):
        return None
    lengths = (kernels.end - kernels.start) / 1e6
    short = lengths < SHORT_KERNEL_SECONDS
    graphs, launched = _graph_launched(kernels), kernels.calls >= 0
    single = kernels.only(launched & ~graphs)
    calls = np.unique(kernels.calls[launched])
    call_lengths = (kernels.events.end[calls] - kernels.events.start[calls]) / 1e6
    return LaunchBreakdown(
        kernels=len(kernels),
        kernels_per_second=len(kernels) / (work.window / 1e6) if work.window else 0.0,
        graph_kernels=int(graphs.sum()),
        length=percentiles(lengths),
        short_kernel_seconds=SHORT_KERNEL_SECONDS,
        short_share=float(short.mean()),
        short_time_share=float(lengths[short].sum() / lengths.sum()) if lengths.sum() else 0.0,
        call_seconds=float(call_lengths.sum()) if len(calls) else None,
        call=percentiles(call_lengths) if len(calls) else None,
        delay=percentiles((single.start - single.submitted) / 1e6) if len(single) else None,
    )


def percentiles(seconds: Floats) -> Percentiles:
    """Of at least one value."""
    return Percentiles(*(float(value) for value in np.percentile(seconds, (10, 50, 90, 99, 100))))


def _graph_launched(kernels: DeviceWork) -> np.ndarray:
    events = kernels.events
    names = [number for number, name in enumerate(events.names) if name.startswith(_GRAPH_LAUNCH)]
    known = kernels.calls >= 0
    graphs: np.ndarray = known & np.isin(events.name[np.maximum(kernels.calls, 0)], names)
    return graphs


_MOST_KERNELS = 15
_MOST_CHARACTERS = 400
_OPTIMIZER = KERNEL_FAMILIES.index("optimizer")


def kernel_families(work: DeviceWork, host: HostWork) -> Ints:
    """The family of each, as an index into ``KERNEL_FAMILIES``.

    By its name; but a kernel that was launched inside ``Optimizer.step`` belongs to the optimizer, whatever it
    computes, unless it communicates.
    """
    events = work.events
    names, place = np.unique(events.name[work.rows], return_inverse=True)
    by_name = np.array([KERNEL_FAMILIES.index(kernel_family(events.names[name])) for name in names.tolist()], dtype=int)
    stepping = host.around(work.calls, host.in_optimizer) >= 0
    kernel = (events.kind[work.rows] == Kind.KERNEL) & ~work.communicates
    return np.where(stepping & kernel, _OPTIMIZER, by_name[place])


def family_times(lengths: Floats, families: Ints) -> tuple[FamilyTime, ...]:
    """Times added up, the longest family first; families without any are left out.

    Args:
        lengths: in microseconds.
        families: of each, an index into ``KERNEL_FAMILIES``.
    """
    seconds = np.bincount(families, lengths, minlength=len(KERNEL_FAMILIES)) / 1e6
    counts = np.bincount(families, minlength=len(KERNEL_FAMILIES))
    total = float(seconds.sum())
    shares = seconds / total if total else seconds
    found = [
        FamilyTime(family, seconds=float(seconds[one]), share=float(shares[one]), count=int(counts[one]))
        for one, family in enumerate(KERNEL_FAMILIES)
        if counts[one]
    ]
    return tuple(sorted(found, key=lambda one: -one.seconds))


def kernel_times(work: DeviceWork, families: Ints, host: HostWork) -> tuple[KernelTime, ...]:
    """The kernels, copies and memsets that take longest, all runs of one name and family together."""
    lengths = work.end - work.start
    key = work.events.name[work.rows].astype(np.int64) * len(KERNEL_FAMILIES) + families
    keys, place, counts = np.unique(key, return_inverse=True, return_counts=True)
    seconds = np.bincount(place, lengths, minlength=len(keys)) / 1e6
    total = float(seconds.sum())
    operators = host.around(work.calls, host.operator)
    found = []
    names = [work.events.names[key // len(KERNEL_FAMILIES)] for key in keys.tolist()]
    for one in sorted(range(len(keys)), key=lambda one: (-seconds[one], names[one]))[:_MOST_KERNELS]:
        full_name = names[one]
        found.append(
            KernelTime(
                name=short_name(full_name),
                full_name=full_name[:_MOST_CHARACTERS],
                family=KERNEL_FAMILIES[int(keys[one]) % len(KERNEL_FAMILIES)],
                seconds=float(seconds[one]),
                share=float(seconds[one]) / total if total else 0.0,
                count=int(counts[one]),
                mean_seconds=float(seconds[one]) / int(counts[one]),
                operator=_chief_operator(work, operators[place == one], lengths[place == one]),
            )
        )
    return tuple(found)


def _chief_operator(work: DeviceWork, operators: Ints, lengths: Floats) -> str | None:
    """Of the operators that are known, the one whose launches make up most of the time."""
    names = np.where(operators >= 0, work.events.name[np.maximum(operators, 0)], -1)
    found, place = np.unique(names, return_inverse=True)
    seconds = np.where(found >= 0, np.bincount(place, lengths), -1.0)
    chief = int(found[np.argmax(seconds)])
    return work.events.names[chief] if chief >= 0 else None


NOTHING_RECORDED = "(nothing recorded)"  # Python, where the profiler recorded no stacks
_STEP = "ProfilerStep"
_MOST_GAPS = 10
_MOST_DOINGS = 3
_LEAST_SHARE = 0.05


def longest_gaps(work: DeviceWork, host: HostWork, steps: StepMarks) -> tuple[DeviceGap, ...]:
    """The longest first."""
    found = gaps(work.start, work.end)
    causes = gap_causes(found, work)
    longest = np.argsort(-found.lengths, kind="stable")[:_MOST_GAPS]
    inside = steps.index(found.start[longest])
    told = []
    for gap, step in zip(longest.tolist(), inside.tolist(), strict=True):
        call = int(work.calls[found.after[gap]])
        told.append(
            DeviceGap(
                start_seconds=float(found.start[gap]) / 1e6,
                seconds=float(found.lengths[gap]) / 1e6,
                cause=CAUSES[int(causes[gap])],
                before=_name(work, int(found.before[gap])),
                after=_name(work, int(found.after[gap])),
                host=_doings(host, call, float(found.start[gap]), float(found.end[gap])) if call >= 0 else (),
                step=int(steps.number[step]) if step >= 0 else None,
            )
        )
    return tuple(told)


def _name(work: DeviceWork, one: int) -> str:
    return short_name(work.events.names[work.events.name[work.rows[one]]])


def _doings(host: HostWork, call: int, start: float, end: float) -> tuple[tuple[str, float], ...]:
    """What the submitting thread did between two moments: self times in that window, by name."""
    tree, thread = host.everything, host.events.thread[call]
    first, last = np.searchsorted(tree.thread, thread), np.searchsorted(tree.thread, thread, side="right")
    near = np.arange(first, first + np.searchsorted(tree.start[first:last], end))
    near = near[tree.end[near] > start]
    clipped = np.minimum(tree.end[near], end) - np.maximum(tree.start[near], start)
    place = {node: index for index, node in enumerate(near.tolist())}
    alone = clipped.copy()
    for index, parent in enumerate(tree.parent[near].tolist()):
        if parent in place:
            alone[place[parent]] -= clipped[index]
    by_name: dict[str, float] = {}
    for row, seconds in zip(tree.rows[near].tolist(), alone.tolist(), strict=True):
        name = host.events.names[host.events.name[row]]
        if not name.startswith(_STEP):
            by_name[name] = by_name.get(name, 0.0) + max(seconds, 0.0)
    by_name[NOTHING_RECORDED] = max(end - start - sum(by_name.values()), 0.0)
    ranked = sorted(((name, value / (end - start)) for name, value in by_name.items()), key=lambda one: -one[1])
    return tuple(one for one in ranked[:_MOST_DOINGS] if one[1] >= _LEAST_SHARE)
