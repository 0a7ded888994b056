"""When a device, and each of its streams, ran something, and when it only communicated."""

from __future__ import annotations

import numpy as np

from hf_efficient.records.trace_device import BusyBreakdown, Communication, IdleSplit, StreamBreakdown
from hf_efficient.trace.idle import device_idle, stream_idle
from hf_efficient.trace.intervals import overlap
from hf_efficient.trace.work import DeviceWork

__all__ = ["communication", "device_busy", "stream_breakdowns"]


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
