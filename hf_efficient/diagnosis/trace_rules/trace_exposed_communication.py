"""Communication that no computation covers."""

from __future__ import annotations

from hf_efficient.diagnosis.trace_rules.rule import SOURCE, cost_of, gain_of, on_device
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.records.trace import TraceBreakdown
from hf_efficient.records.trace_device import DeviceBreakdown
from hf_efficient.units import share

__all__ = ["trace_exposed_communication"]

_TOO_MUCH = 0.1


def trace_exposed_communication(trace: TraceBreakdown, device: DeviceBreakdown) -> Finding | None:
    """A tenth of the time or more: transfers, or the wait for a slower rank; one rank's trace does not tell which."""
    found = device.communication
    if found is None or found.exposed_share < _TOO_MUCH:
        return None
    basis = "gradients are averaged half as often; each time as long as now"
    return Finding(
        rule="trace_exposed_communication",
        title=f"{on_device(device)} communicates and computes nothing in {share(found.exposed_share)} of the time",
        severity="warning",
        confidence="measured",
        evidence=[
            Evidence("communication", found.seconds, "seconds", SOURCE),
            Evidence("of it, that nothing covers", found.exposed_seconds, "seconds", SOURCE),
            Evidence("of it, covered by computation", found.overlap_share, "share", SOURCE),
        ],
        cost=cost_of(found.exposed_seconds),
        remedies=[
            Remedy(
                "accumulate twice as many micro-batches between two steps",
                costs="a step holds twice the examples",
                gain=gain_of(device, found.exposed_seconds / 2, basis),
            ),
            Remedy("hold the other ranks' traces against it: who communicates least is who the others wait for"),
        ],
    )
