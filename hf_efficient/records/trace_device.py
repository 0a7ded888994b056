"""A device's time, by a trace: busy, idle, communication, and its longest gaps.

All times are seconds on the trace's own clock. What a trace does not tell is None, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hf_efficient.records.trace_kernels import CopyKind, FamilyTime, KernelTime, LaunchBreakdown

__all__ = [
    "BusyBreakdown",
    "Communication",
    "DeviceBreakdown",
    "DeviceGap",
    "IdleCause",
    "IdleSplit",
    "StreamBreakdown",
]

IdleCause = Literal["host_bound", "launch_bound", "other"]


@dataclass(frozen=True)
class IdleSplit:
    """Why a device, or a stream, ran nothing between its first event and its last.

    ``trace/idle.py`` defines the three of a device; those of a stream are what HolisticTraceAnalysis calls
    ``host_wait``, ``kernel_wait`` and ``other``.

    Attributes:
        host_bound_seconds: the next work was not yet submitted when the gap began, and the gap is long.
        launch_bound_seconds: gaps too short for the host to have done anything but submit the next kernel.
        other_seconds: the work had been submitted before, and the device did not start it: it waited for another
            stream, an event, or memory. ``unknown_seconds`` is part of it.
        unknown_seconds: the trace does not hold the call that submitted the work.
        host_bound_gaps, launch_bound_gaps, other_gaps: how many.
    """

    host_bound_seconds: float
    launch_bound_seconds: float
    other_seconds: float
    unknown_seconds: float
    host_bound_gaps: int
    launch_bound_gaps: int
    other_gaps: int


@dataclass(frozen=True)
class BusyBreakdown:
    """The time of a device, or a stream, from the start of its first event to the end of its last.

    Attributes:
        window_seconds: that time; ``busy_seconds + idle_seconds``.
        busy_seconds: something ran: a kernel, a copy or a memset; overlapping ones counted once.
        idle_seconds: nothing ran.
        idle_share: of the window.
        compute_seconds: a kernel ran that neither communicates nor copies (what HolisticTraceAnalysis calls compute
            time); overlapping ones counted once.
        idle: split by cause.
    """

    window_seconds: float
    busy_seconds: float
    idle_seconds: float
    idle_share: float
    compute_seconds: float
    idle: IdleSplit


@dataclass(frozen=True)
class StreamBreakdown:
    """One stream of a device.

    Attributes:
        stream: its number.
        events: kernels, copies and memsets.
        busy: its idle split is HolisticTraceAnalysis' own.
    """

    stream: int
    events: int
    busy: BusyBreakdown


@dataclass(frozen=True)
class Communication:
    """Kernels that communicate between devices, as HolisticTraceAnalysis counts them.

    Attributes:
        kernels: that communicate.
        seconds: at least one of them ran.
        overlapped_seconds: and a compute kernel at the same time.
        exposed_seconds: and no compute kernel: ``seconds - overlapped_seconds``.
        overlap_share: ``overlapped_seconds / seconds``.
        exposed_share: of the device's window.
    """

    kernels: int
    seconds: float
    overlapped_seconds: float
    exposed_seconds: float
    overlap_share: float
    exposed_share: float


@dataclass(frozen=True)
class DeviceGap:
    """A time in which a device ran nothing.

    Attributes:
        start_seconds: since the first event of the trace.
        seconds: how long.
        cause: as in ``IdleSplit``.
        before, after: the device event that ended before it, and the one that ended it, shortened.
        host: what the thread did that submitted the next event: the longest operators, calls and functions in the
            gap, innermost, with the share of the gap that they take.
        step: the number of the ``ProfilerStep`` in which it began.
    """

    start_seconds: float
    seconds: float
    cause: IdleCause
    before: str
    after: str
    host: tuple[tuple[str, float], ...]
    step: int | None


@dataclass(frozen=True)
class DeviceBreakdown:
    """One device of a trace.

    Attributes:
        device: its number in the trace.
        name: as its driver calls it; None where the trace does not tell.
        first_event_seconds: since the first event of the trace.
        busy: all its streams together.
        streams: each alone, the busiest first.
        families: time by kind of work, the longest first.
        kernels: the ones that take longest.
        launches: None where no kernel ran.
        copies: by direction, the longest first.
        communication: None where nothing communicates.
        gaps: the longest ones, the longest first.
    """

    device: int
    name: str | None
    first_event_seconds: float
    busy: BusyBreakdown
    streams: tuple[StreamBreakdown, ...]
    families: tuple[FamilyTime, ...]
    kernels: tuple[KernelTime, ...]
    launches: LaunchBreakdown | None
    copies: tuple[CopyKind, ...]
    communication: Communication | None
    gaps: tuple[DeviceGap, ...]
