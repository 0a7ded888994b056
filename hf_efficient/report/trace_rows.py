"""Lines about a trace that are no table."""

from __future__ import annotations

from collections.abc import Iterator

from hf_efficient.records.trace import TraceBreakdown
from hf_efficient.records.trace_device import Communication, DeviceBreakdown
from hf_efficient.records.trace_kernels import LaunchBreakdown, Percentiles
from hf_efficient.units import count, share, short_seconds, size

__all__ = ["communication_line", "device_time_rows", "device_title", "launch_lines", "trace_title"]


def trace_title(trace: TraceBreakdown, name: str = "") -> str:
    """What was read.

    Args:
        trace: the breakdown.
        name: of its file; default: the path under which it was read.
    """
    file = trace.file
    told = [f"{count(file.events)} events in {size(file.read_bytes)}", f"{short_seconds(trace.window_seconds)} long"]
    if file.rank is not None and (file.world_size or 1) > 1:
        told.append(f"rank {file.rank} of {file.world_size}")
    if trace.steps:
        told.append(f"steps {trace.steps[0].number} to {trace.steps[-1].number}")
    return f"{name or file.path}: {', '.join(told)}"


def device_title(device: DeviceBreakdown) -> str:
    """Its number, and its name where that is known."""
    return f"device {device.device}" + (f", {device.name}" if device.name else "")


def device_time_rows(device: DeviceBreakdown) -> list[tuple[str, float]]:
    """What a device's window is made of, each second in one row."""
    busy = device.busy
    exposed = device.communication.exposed_seconds if device.communication else 0.0
    alone = busy.busy_seconds - busy.compute_seconds - exposed
    rows = [
        ("computing", busy.compute_seconds),
        ("only communicating", exposed),
        ("only copying or setting memory", alone),
        ("idle, host-bound", busy.idle.host_bound_seconds),
        ("idle, launch-bound", busy.idle.launch_bound_seconds),
        ("idle, other", busy.idle.other_seconds),
    ]
    return [(name, max(seconds, 0.0)) for name, seconds in rows if seconds > 0 or name == "computing"]


def launch_lines(launches: LaunchBreakdown | None) -> Iterator[str]:
    """How long kernels are, and how they are submitted."""
    if launches is None:
        return
    short = short_seconds(launches.short_kernel_seconds)
    yield (
        f"{count(launches.kernels)} kernels, {launches.kernels_per_second:,.0f} per second: "
        f"{_percentiles(launches.length)}; "
        f"{share(launches.short_share)} are shorter than {short}, {share(launches.short_time_share)} of their time"
    )
    if launches.graph_kernels:
        yield f"{count(launches.graph_kernels)} of them were submitted by CUDA graphs"
    if launches.call is not None and launches.call_seconds is not None:
        spent = short_seconds(launches.call_seconds)
        yield f"calls that launch them: {spent} of the host, {_percentiles(launches.call)}"
    if launches.delay is not None:
        yield f"from call to start of the kernel: {_percentiles(launches.delay)}"


def communication_line(communication: Communication | None) -> Iterator[str]:
    """What of the communication the computation hides."""
    if communication is not None:
        yield (
            f"{count(communication.kernels)} communication kernels run for {short_seconds(communication.seconds)}: "
            f"{share(communication.overlap_share)} of that beside computation, "
            f"{short_seconds(communication.exposed_seconds)} exposed "
            f"({share(communication.exposed_share)} of the window)"
        )


def _percentiles(values: Percentiles) -> str:
    told = (("p10", values.p10_seconds), ("p50", values.p50_seconds), ("p90", values.p90_seconds))
    return ", ".join(f"{name} {short_seconds(value)}" for name, value in told)
