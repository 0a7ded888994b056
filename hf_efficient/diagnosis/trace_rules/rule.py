"""What a rule of traces is, and what they have in common."""

from __future__ import annotations

from collections.abc import Callable

from hf_efficient.records.findings import Cost, Finding, Gain
from hf_efficient.records.trace import TraceBreakdown
from hf_efficient.records.trace_device import DeviceBreakdown

__all__ = ["SOURCE", "TraceRule", "cost_of", "gain_of", "on_device"]

TraceRule = Callable[[TraceBreakdown, DeviceBreakdown], Finding | None]
"""Of a trace and its busiest device."""

SOURCE = "the trace"


def cost_of(seconds: float) -> Cost:
    """Of the traced time."""
    return Cost(seconds=seconds)


def gain_of(device: DeviceBreakdown, seconds: float, basis: str) -> Gain:
    """Of the device's traced time, saved for the same work."""
    window = device.busy.window_seconds
    saved = max(0.0, min(seconds, window))
    return Gain(saved / window if window else 0.0, saved, None, None, basis)


def on_device(device: DeviceBreakdown) -> str:
    """``device 0``."""
    return f"device {device.device}"
