"""Kernels that move memory rather than multiply."""

from __future__ import annotations

from hf_efficient.diagnosis.trace_rules.rule import SOURCE, cost_of, gain_of, on_device
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.records.trace import TraceBreakdown
from hf_efficient.records.trace_device import DeviceBreakdown
from hf_efficient.units import share

__all__ = ["trace_memory_bound"]

_TOO_MUCH = 0.5
_FUSABLE = ("elementwise", "reduction", "normalisation")
_FUSED = 0.5
"""Of the time of such kernels between products, what fusing them saves: reads and writes between them. An estimate."""


def trace_memory_bound(trace: TraceBreakdown, device: DeviceBreakdown) -> Finding | None:
    """Elementwise, reducing and normalising kernels take half of the time of all kernels or more."""
    found = [one for one in device.families if one.family in _FUSABLE]
    taken, seconds = sum(one.share for one in found), sum(one.seconds for one in found)
    if taken < _TOO_MUCH:
        return None
    basis = "fused kernels read and write half as much: an estimate"
    gain = gain_of(device, _FUSED * seconds, basis)
    evidence = [Evidence(f"{one.family} kernels", one.seconds, "seconds", SOURCE) for one in found]
    evidence += [
        Evidence(f"{one.name}, {one.count} times", one.seconds, "seconds", SOURCE)
        for one in [kernel for kernel in device.kernels if kernel.family in _FUSABLE][:3]
    ]
    return Finding(
        rule="trace_memory_bound",
        title=f"{share(taken)} of {on_device(device)}'s kernel time moves memory, and multiplies nothing",
        severity="warning",
        confidence="likely",
        evidence=evidence,
        cost=cost_of(seconds),
        remedies=[
            Remedy("compile the model: it fuses such kernels", {"train.torch_compile": True}, "compilation", gain),
            Remedy(
                "or take fused kernels for norms, MLP and loss",
                {"train.use_liger_kernel": True},
                "pip install liger-kernel",
                gain,
            ),
        ],
    )
