"""What a reader should know before the figures of a trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from hf_efficient.records.trace_device import DeviceBreakdown
from hf_efficient.trace.kinds import Kind
from hf_efficient.trace.read import Trace

__all__ = ["NO_DEVICE_EVENTS", "trace_remarks"]

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
