"""The breakdown of a trace: every part of it put together."""

from __future__ import annotations

from pathlib import Path

from hf_efficient.records.trace import TraceBreakdown
from hf_efficient.records.trace_device import DeviceBreakdown
from hf_efficient.trace.busy import communication, device_busy, stream_breakdowns
from hf_efficient.trace.copies import copy_kinds
from hf_efficient.trace.host import HostWork
from hf_efficient.trace.kernels import family_times, kernel_families, kernel_times
from hf_efficient.trace.lengths import launch_breakdown
from hf_efficient.trace.longest import longest_gaps
from hf_efficient.trace.operators import host_breakdown
from hf_efficient.trace.read import Trace, read_trace
from hf_efficient.trace.remarks import trace_remarks
from hf_efficient.trace.steps import StepMarks, step_marks, trace_steps
from hf_efficient.trace.syncs import sync_sites
from hf_efficient.trace.waits import host_waits
from hf_efficient.trace.work import DeviceWork, device_work

__all__ = ["break_down", "trace_breakdown"]


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
