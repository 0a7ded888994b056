"""Matrix products in float32."""

from __future__ import annotations

from hf_efficient.diagnosis.kernel_precision import float32_products_of
from hf_efficient.diagnosis.trace_rules.rule import SOURCE, cost_of, gain_of, on_device
from hf_efficient.hardware.accelerators import accelerator_of_device
from hf_efficient.records.findings import Evidence, Finding, Gain, Remedy
from hf_efficient.records.trace import TraceBreakdown
from hf_efficient.records.trace_device import DeviceBreakdown
from hf_efficient.units import share

__all__ = ["trace_float32_products"]

_TOO_MUCH = 0.1
_MOST_NAMED = 3
_BEFORE = ("volta_", "turing_", "maxwell_", "pascal_")
"""What kernels of such devices are called."""
_SAVED = 0.5
"""Of their time, an estimate: 16 bits halve the bytes, and at least halve the arithmetic wherever tensor cores are."""


def trace_float32_products(trace: TraceBreakdown, device: DeviceBreakdown) -> Finding | None:
    """A tenth of the device's time or more, among the kernels that take longest."""
    found = float32_products_of(device)
    seconds, window = sum(one.seconds for one in found), device.busy.window_seconds
    if window <= 0 or seconds < _TOO_MUCH * window:
        return None
    gain = gain_of(device, _SAVED * seconds, "half of their time at the least, by half of the bytes")
    return Finding(
        rule="trace_float32_products",
        title=f"{share(seconds / window)} of {on_device(device)}'s time are matrix products in float32",
        severity="warning",
        confidence="likely",
        evidence=[
            Evidence(f"{one.name}, {one.count} times", one.seconds, "seconds", SOURCE) for one in found[:_MOST_NAMED]
        ],
        cost=cost_of(seconds),
        remedies=_remedies(device, gain),
    )


def _remedies(device: DeviceBreakdown, gain: Gain) -> list[Remedy]:
    """Devices from before bfloat16 know neither it nor TF32."""
    known = accelerator_of_device(device.name or "")
    if (known is not None and known.lacks_bfloat16) or any(one.name.startswith(_BEFORE) for one in device.kernels):
        costs = "float16 needs its losses scaled, and overflows at 65,504"
        return [Remedy("train in mixed precision", {"train.fp16": True}, costs, gain)]
    return [
        Remedy("train in mixed precision", {"train.bf16": True}, "bfloat16 keeps 8 of float32's 24 bits", gain),
        Remedy("or let float32 products run in TF32", {"train.tf32": True}, "11 of 24 bits in products alone"),
    ]
