"""Why a device ran nothing: every gap between two of its events has one cause.

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
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hf_efficient.records.trace_device import IdleCause, IdleSplit
from hf_efficient.trace.intervals import Gaps, gaps
from hf_efficient.trace.table import Floats, Ints
from hf_efficient.trace.work import DeviceWork

__all__ = ["CAUSES", "SHORT_GAP_SECONDS", "device_idle", "gap_causes", "stream_idle"]

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
