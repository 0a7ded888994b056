"""The breakdown of a trace: every part of it put together."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from hf_efficient.records.trace import DeviceBreakdown, TraceBreakdown
from hf_efficient.trace.device import device_breakdown, device_work
from hf_efficient.trace.host import HostWork, host_breakdown, host_waits, step_marks, sync_sites, trace_steps
from hf_efficient.trace.read import Kind, Trace, read_trace

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
    works = {device: device_work(events, events.device_rows(device)) for device in events.devices()}
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
