"""Kernels shorter than their launch."""

from __future__ import annotations

from hf_efficient.diagnosis.trace_rules.rule import SOURCE, cost_of, gain_of, on_device
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.records.trace import TraceBreakdown
from hf_efficient.records.trace_device import DeviceBreakdown
from hf_efficient.units import share, short_seconds

__all__ = ["trace_launch_bound"]

_TOO_MUCH = 0.15


def trace_launch_bound(trace: TraceBreakdown, device: DeviceBreakdown) -> Finding | None:
    """The gaps between kernels that are too short for anything but launching take 15% of the time or more."""
    seconds, window, launches = device.busy.idle.launch_bound_seconds, device.busy.window_seconds, device.launches
    if window <= 0 or launches is None or seconds < _TOO_MUCH * window:
        return None
    evidence = [
        Evidence("gaps between kernels", seconds, "seconds", SOURCE),
        Evidence("kernels a second", launches.kernels_per_second, "count", SOURCE),
        Evidence("median kernel", launches.length.p50_seconds, "seconds", SOURCE),
        Evidence("kernels shorter than their launch", launches.short_share, "share", SOURCE),
    ]
    doubled = gain_of(device, seconds / 2, "as many gaps for twice the rows")
    fused = gain_of(device, seconds / 2, "half of the gaps, by fused operators: an estimate")
    return Finding(
        rule="trace_launch_bound",
        title=f"{on_device(device)} waits for launches in {share(seconds / window)} of the time: half of its kernels "
        f"are shorter than {short_seconds(launches.length.p50_seconds)}",
        severity="warning",
        confidence="measured",
        evidence=evidence,
        cost=cost_of(seconds),
        remedies=[
            Remedy("take twice the rows into a micro-batch", costs="activations of more rows", gain=doubled),
            Remedy("compile the model", {"train.torch_compile": True}, "compilation at the start", fused),
        ],
    )
