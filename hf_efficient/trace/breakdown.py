"""The breakdown of a trace, and of it what a device did: when it was busy, why it was idle, its kernels, launches,
copies and communication.

Every gap between two events of a device has one cause. A gap begins when the last running event of all streams ends,
and ends with the next event of any stream. Be ``s`` the start of the call of the runtime that submitted that event.

- **launch-bound**: it is shorter than ``SHORT_GAP_SECONDS``. The host can do no more than dispatch one operator and
  submit its kernel in that time. Larger kernels help (a larger micro-batch, fusion), or CUDA graphs.
- **host-bound**: it is longer, and the host had not submitted the next event (``s`` lies in the gap): it fetched data,
  waited for the device, logged, ran Python.
- **other**: it is longer, and the next event had been submitted before. The device waited for another stream, an event,
  memory, or another rank. A gap whose next event has no call in the trace is among these, and marked.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from hf_efficient.records import trace as rec
from hf_efficient.records.trace import KERNEL_FAMILIES, DeviceBreakdown, IdleSplit, TraceBreakdown
from hf_efficient.trace.families import COMMUNICATION, OPTIMIZER, family_times, kernel_family, short_name
from hf_efficient.trace.host import HostWork, StepMarks, host_breakdown, host_waits, step_marks, sync_sites, trace_steps
from hf_efficient.trace.read import EventTable, Floats, Ints, Kind, Mask, Trace, read_trace
from hf_efficient.trace.timeline import Gaps, Spans, clipped_length, gaps, union

# HolisticTraceAnalysis' own threshold: consecutive_kernel_delay of get_idle_time_breakdown.
SHORT_GAP_SECONDS = 30e-6
# About what the host needs to submit a kernel from eager PyTorch: a shorter one leaves the device waiting.
SHORT_KERNEL_SECONDS = 10e-6
SMALL_COPY_BYTES = 64 << 10
NOTHING_RECORDED = "(nothing recorded)"  # Python, where the profiler recorded no stacks

_CAUSES: tuple[rec.IdleCause, ...] = ("host_bound", "launch_bound", "other")
_HOST_BOUND, _LAUNCH_BOUND, _OTHER = range(3)
_GRAPH_LAUNCH = re.compile(r"^(cuda|cu|hip)GraphLaunch")
_DIRECTION = re.compile(r"\b([HDAP])to([HDAP])\b")
_SPELLED = {
    "HostToDevice": "HtoD", "DeviceToHost": "DtoH", "DeviceToDevice": "DtoD", "PeerToPeer": "PtoP",
}  # fmt: skip
_MOST_KERNELS = 15
_MOST_CHARACTERS = 400
_MOST_GAPS = 10
_MOST_DOINGS = 3
_LEAST_SHARE = 0.05

_HostMemory = Literal["pinned", "pageable"] | None


@dataclass(frozen=True)
class DeviceWork:
    """Kernels, copies and memsets in ``rows`` of ``events``, and the ``calls`` that submitted them, or -1."""

    events: EventTable
    rows: Ints
    calls: Ints
    communicates: Mask

    @cached_property
    def start(self) -> Floats:
        return self.events.start[self.rows]

    @cached_property
    def end(self) -> Floats:
        return self.events.end[self.rows]

    @cached_property
    def lengths(self) -> Floats:
        return self.end - self.start

    @cached_property
    def gaps(self) -> Gaps:
        return gaps(self.start, self.end)

    @cached_property
    def submitted(self) -> Floats:
        """When the call began; NaN where it is not in the trace."""
        return np.where(self.calls >= 0, self.events.start[np.maximum(self.calls, 0)], np.nan)

    @property
    def computes(self) -> Mask:
        return (self.events.kind[self.rows] == Kind.KERNEL) & ~self.communicates

    @property
    def window_seconds(self) -> float:
        return float(self.end.max() - self.start[0]) / 1e6

    def spans(self, chosen: Mask | slice = slice(None)) -> Spans:
        return union(self.start[chosen], self.end[chosen])

    def only(self, chosen: Mask) -> "DeviceWork":
        return DeviceWork(self.events, self.rows[chosen], self.calls[chosen], self.communicates[chosen])

    def call_lengths(self) -> Floats:
        """Of the calls that submitted them, each once, in seconds."""
        calls = np.unique(self.calls[self.calls >= 0])
        return (self.events.end[calls] - self.events.start[calls]) / 1e6


def device_work(events: EventTable, rows: Ints) -> DeviceWork:
    communicating = np.isin(events.name[rows], events.named(COMMUNICATION))
    return DeviceWork(events, rows, _submitting_calls(events, rows), communicating & (events.kind[rows] == Kind.KERNEL))


def _submitting_calls(events: EventTable, rows: Ints) -> Ints:
    """The row of the first call with the same correlation (a driver launch has two) for each; -1: none."""
    calls = events.rows(Kind.CALL)
    calls = calls[events.correlation[calls] >= 0]
    if not len(calls):
        return np.full(len(rows), -1)
    calls = calls[np.argsort(events.correlation[calls], kind="stable")]
    keys, wanted = events.correlation[calls], events.correlation[rows]
    found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where((keys[found] == wanted) & (wanted >= 0), calls[found], -1)


def device_breakdown(
    device: int, name: str | None, work: DeviceWork, host: HostWork, steps: StepMarks
) -> DeviceBreakdown:
    families = _kernel_families(work, host)
    return DeviceBreakdown(
        device=device,
        name=name,
        first_event_seconds=float(work.start[0]) / 1e6,
        busy=device_busy(work),
        families=family_times(work.lengths, families),
        kernels=_kernel_times(work, families, host),
        launches=_launches(work),
        copies=_copy_kinds(work),
        communication=communication(work),
        gaps=_longest_gaps(work, host, steps),
    )


def _gap_causes(work: DeviceWork) -> Ints:
    short = work.gaps.lengths < SHORT_GAP_SECONDS * 1e6
    late = work.submitted[work.gaps.after] > work.gaps.start  # False where it is not known
    return np.where(short, _LAUNCH_BOUND, np.where(late, _HOST_BOUND, _OTHER))


def device_busy(work: DeviceWork) -> rec.BusyBreakdown:
    window, busy = work.window_seconds, work.spans().length / 1e6
    lengths, causes, unknown = work.gaps.lengths, _gap_causes(work), np.isnan(work.submitted[work.gaps.after])
    host, launch, other = (np.bincount(causes, lengths, minlength=3) / 1e6).tolist()
    unknown_seconds = float(lengths[unknown & (causes == _OTHER)].sum()) / 1e6
    counts = np.bincount(causes, minlength=3).tolist()
    return rec.BusyBreakdown(
        window_seconds=window,
        busy_seconds=busy,
        idle_seconds=window - busy,
        idle_share=(window - busy) / window if window else 0.0,
        compute_seconds=work.spans(work.computes).length / 1e6,
        idle=IdleSplit(host, launch, other, unknown_seconds, *counts),
    )


def communication(work: DeviceWork) -> rec.Communication | None:
    if not work.communicates.any():
        return None
    talking = work.spans(work.communicates)
    seconds = talking.length / 1e6
    both = float(clipped_length(work.spans(work.computes), talking.start, talking.end).sum()) / 1e6
    return rec.Communication(
        kernels=int(work.communicates.sum()),
        seconds=seconds,
        overlapped_seconds=both,
        exposed_seconds=seconds - both,
        overlap_share=both / seconds if seconds else 0.0,
        exposed_share=(seconds - both) / work.window_seconds if work.window_seconds else 0.0,
    )


def _kernel_families(work: DeviceWork, host: HostWork) -> Ints:
    """By name; but what ``Optimizer.step`` launched is the optimizer's, unless it communicates."""
    names, place = np.unique(work.events.name[work.rows], return_inverse=True)
    by_name = np.array([KERNEL_FAMILIES.index(kernel_family(work.events.names[name])) for name in names.tolist()])
    return np.where((host.around(work.calls, host.in_optimizer) >= 0) & work.computes, OPTIMIZER, by_name[place])


def _kernel_times(work: DeviceWork, families: Ints, host: HostWork) -> tuple[rec.KernelTime, ...]:
    key = work.events.name[work.rows].astype(np.int64) * len(KERNEL_FAMILIES) + families
    keys, place, counts = np.unique(key, return_inverse=True, return_counts=True)
    seconds = np.bincount(place, work.lengths, minlength=len(keys)) / 1e6
    total = float(seconds.sum())
    operators = host.around(work.calls, host.operator)
    names = [work.events.names[key // len(KERNEL_FAMILIES)] for key in keys.tolist()]
    longest = sorted(range(len(keys)), key=lambda one: (-seconds[one], names[one]))[:_MOST_KERNELS]
    return tuple(
        rec.KernelTime(
            name=short_name(names[one]),
            full_name=names[one][:_MOST_CHARACTERS],
            family=KERNEL_FAMILIES[int(keys[one]) % len(KERNEL_FAMILIES)],
            seconds=float(seconds[one]),
            share=float(seconds[one]) / total if total else 0.0,
            count=int(counts[one]),
            mean_seconds=float(seconds[one]) / int(counts[one]),
            operator=_chief_operator(work.only(place == one), operators[place == one]),
        )
        for one in longest
    )


def _chief_operator(runs: DeviceWork, operators: Ints) -> str | None:
    """Of the operators that are known, the one whose launches make up most of the time."""
    events = runs.events
    names = np.where(operators >= 0, events.name[np.maximum(operators, 0)], -1)
    found, place = np.unique(names, return_inverse=True)
    seconds = np.where(found >= 0, np.bincount(place, runs.lengths), -1.0)
    chief = int(found[np.argmax(seconds)])
    return events.names[chief] if chief >= 0 else None


def _launches(work: DeviceWork) -> rec.LaunchBreakdown | None:
    kernels = work.only(work.events.kind[work.rows] == Kind.KERNEL)
    if not len(kernels.rows):
        return None
    lengths, launched = kernels.lengths / 1e6, kernels.calls >= 0
    short = lengths < SHORT_KERNEL_SECONDS
    graph_calls = kernels.events.named(_GRAPH_LAUNCH)
    graphs = launched & np.isin(kernels.events.name[np.maximum(kernels.calls, 0)], graph_calls)
    single, calls = launched & ~graphs, kernels.call_lengths()
    return rec.LaunchBreakdown(
        kernels=len(lengths),
        kernels_per_second=len(lengths) / work.window_seconds if work.window_seconds else 0.0,
        graph_kernels=int(graphs.sum()),
        length=_percentiles(lengths),
        short_kernel_seconds=SHORT_KERNEL_SECONDS,
        short_share=float(short.mean()),
        short_time_share=float(lengths[short].sum() / lengths.sum()) if lengths.sum() else 0.0,
        call_seconds=float(calls.sum()) if len(calls) else None,
        call=_percentiles(calls) if len(calls) else None,
        delay=_percentiles((kernels.start - kernels.submitted)[single] / 1e6) if single.any() else None,
    )


def _percentiles(seconds: Floats) -> rec.Percentiles:
    return rec.Percentiles(*np.percentile(seconds, (10, 50, 90, 99, 100)).tolist())


def _copy_kinds(work: DeviceWork) -> tuple[rec.CopyKind, ...]:
    copies = work.only(work.events.kind[work.rows] == Kind.COPY)
    kinds = [copy_of_name(work.events.names[name]) for name in work.events.name[copies.rows].tolist()]
    found = [_copy_kind(copies.only(np.array([one == kind for one in kinds])), *kind) for kind in dict.fromkeys(kinds)]
    return tuple(sorted(found, key=lambda one: -one.seconds))


def copy_of_name(name: str) -> tuple[str, _HostMemory]:
    """``Memcpy HtoD (Pageable -> Device)``: ``("HtoD", "pageable")``; what a name lacks is unknown, or None."""
    told = _DIRECTION.search(name)
    direction = told[0] if told else next((short for long, short in _SPELLED.items() if long in name), "unknown")
    if "Pageable" in name:
        return direction, "pageable"
    return direction, "pinned" if "Pinned" in name else None


def _copy_kind(copies: DeviceWork, direction: str, host_memory: _HostMemory) -> rec.CopyKind:
    events, calls = copies.events, copies.call_lengths()
    # Of the copy, or (ROCm) the call that submitted it; -1: neither.
    own = events.bytes[copies.rows]
    told = np.where((own < 0) & (copies.calls >= 0), events.bytes[np.maximum(copies.calls, 0)], own)
    known = told >= 0
    timed = float(copies.lengths[known].sum()) / 1e6
    return rec.CopyKind(
        direction=direction,
        host_memory=host_memory,
        count=len(told),
        seconds=float(copies.lengths.sum()) / 1e6,
        bytes=int(told[known].sum()) if known.any() else None,
        bytes_per_second=float(told[known].sum()) / timed if timed else None,
        small_count=int((told[known] <= SMALL_COPY_BYTES).sum()),
        call_seconds=float(calls.sum()) if len(calls) else None,
    )


def _longest_gaps(work: DeviceWork, host: HostWork, steps: StepMarks) -> tuple[rec.DeviceGap, ...]:
    found, causes = work.gaps, _gap_causes(work)
    inside = steps.index(found.start)
    told = []
    for gap in np.argsort(-found.lengths, kind="stable")[:_MOST_GAPS].tolist():
        start, end = float(found.start[gap]), float(found.end[gap])
        before, after = work.events.name[work.rows[[found.before[gap], found.after[gap]]]].tolist()
        call = int(work.calls[found.after[gap]])
        told.append(
            rec.DeviceGap(
                start_seconds=start / 1e6,
                seconds=(end - start) / 1e6,
                cause=_CAUSES[int(causes[gap])],
                before=short_name(work.events.names[before]),
                after=short_name(work.events.names[after]),
                host=_doings(host, call, start, end) if call >= 0 else (),
                step=int(steps.number[inside[gap]]) if inside[gap] >= 0 else None,
            )
        )
    return tuple(told)


def _doings(host: HostWork, call: int, start: float, end: float) -> tuple[tuple[str, float], ...]:
    """What the submitting thread did between two moments: self times in that window, by name."""
    tree, events = host.everything, host.events
    first, last = np.searchsorted(tree.thread, [events.thread[call], events.thread[call] + 1])
    near = np.arange(first, first + np.searchsorted(tree.start[first:last], end))
    near = near[tree.end[near] > start]
    clipped = np.minimum(tree.end[near], end) - np.maximum(tree.start[near], start)
    alone = dict(zip(near.tolist(), clipped.tolist(), strict=True))
    for parent, length in zip(tree.parent[near].tolist(), clipped.tolist(), strict=True):
        if parent in alone:
            alone[parent] -= length
    by_name: dict[str, float] = {}
    for node, length in alone.items():
        name = events.names[events.name[tree.rows[node]]]
        if not name.startswith("ProfilerStep"):
            by_name[name] = by_name.get(name, 0.0) + max(length, 0.0)
    by_name[NOTHING_RECORDED] = max(end - start - sum(by_name.values()), 0.0)
    ranked = sorted(((name, value / (end - start)) for name, value in by_name.items()), key=lambda one: -one[1])
    return tuple(one for one in ranked[:_MOST_DOINGS] if one[1] >= _LEAST_SHARE)


NO_DEVICE_EVENTS = (
    "There are no device events in this trace: it holds the host's operators alone. For the kernels of a GPU, "
    "profile on a machine that has one, with ProfilerActivity.CUDA among the activities."
)
_MANY_UNKNOWN = 0.05
_MUCH_OVERHEAD = 0.01


def trace_breakdown(path: Path) -> TraceBreakdown:
    """Where the time of a trace went; ``OutputError``: the file cannot be read, or is no Chrome trace."""
    return break_down(read_trace(path))


def break_down(trace: Trace) -> TraceBreakdown:
    events, names = trace.events, trace.file.device_names
    host, steps, waits = HostWork(events), step_marks(events), host_waits(events)
    works = {device: device_work(events, rows) for device, rows in events.by_device().items()}
    devices = tuple(device_breakdown(one, names.get(one), work, host, steps) for one, work in works.items())
    return TraceBreakdown(
        file=trace.file,
        window_seconds=float(events.end.max(initial=0.0)) / 1e6,
        devices=devices,
        host=host_breakdown(host),
        syncs=sync_sites(host, waits, [work.gaps for work in works.values()], steps),
        steps=trace_steps(events, steps, waits),
        remarks=tuple(_remarks(trace, devices)),
    )


def _remarks(trace: Trace, devices: Sequence[DeviceBreakdown]) -> Iterator[str]:
    events = trace.events
    if trace.file.truncated:
        yield "The file ends before its list of events does: what follows is of the part that was written."
    if trace.file.unreadable_events:
        yield f"{trace.file.unreadable_events:,} events could not be read and are left out."
    if not len(events):
        yield "The trace holds no events."
    elif not devices:
        yield NO_DEVICE_EVENTS
    if len(devices) > 1:
        yield "This trace has several devices; each has a breakdown of its own."
    idle = sum(one.busy.idle_seconds for one in devices)
    unknown = sum(one.busy.idle.unknown_seconds for one in devices)
    if idle and unknown / idle > _MANY_UNKNOWN:
        yield (
            f"Of {unknown / idle:.0%} of the idle time the trace does not hold the call that ended it: it counts as "
            "other. Profile the CPU's activities too."
        )
    overhead = events.rows(Kind.OVERHEAD)
    seconds = float((events.end - events.start)[overhead].sum()) / 1e6
    if seconds > _MUCH_OVERHEAD * float(events.end.max(initial=0.0)) / 1e6:
        names = sorted({events.names[name] for name in np.unique(events.name[overhead]).tolist()})
        yield f"{seconds:.3f} s are the profiler's own overhead or the loading of kernels: {', '.join(names)}."
