"""Copies from and to memory that the system may move."""

from __future__ import annotations

from hf_efficient.diagnosis.trace_rules.rule import SOURCE, cost_of, gain_of, on_device
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.records.trace import TraceBreakdown
from hf_efficient.records.trace_device import DeviceBreakdown
from hf_efficient.records.trace_kernels import CopyKind
from hf_efficient.units import share, short_seconds, size

__all__ = ["trace_pageable_copies"]

_TOO_MUCH = 0.02


def trace_pageable_copies(trace: TraceBreakdown, device: DeviceBreakdown) -> Finding | None:
    """Pageable copies to the device hold up host or device for a fiftieth of the time or more."""
    found = [one for one in device.copies if one.direction == "HtoD" and one.host_memory == "pageable"]
    lost = sum(max(one.seconds, one.call_seconds or 0.0) for one in found)
    if device.busy.window_seconds <= 0 or lost < _TOO_MUCH * device.busy.window_seconds:
        return None
    count, small = sum(one.count for one in found), sum(one.small_count for one in found)
    remedies = [
        Remedy(
            "pin the batches' memory, so that they are copied while the device computes",
            {"train.dataloader_pin_memory": True},
            "host memory that cannot be swapped",
            gain_of(device, lost, "copies from pinned memory run beside the computation"),
        )
    ]
    if small > count / 2:
        remedies.append(Remedy("put many small tensors into one before they are copied"))
    return Finding(
        rule="trace_pageable_copies",
        title=f"{count} copies from pageable memory to {on_device(device)} take {short_seconds(lost)}, "
        f"{share(lost / device.busy.window_seconds)} of the time",
        severity="warning",
        confidence="measured",
        evidence=[*_evidence(found), Evidence("of at most 64 KiB", small, "count", SOURCE)],
        cost=cost_of(lost),
        remedies=remedies,
    )


def _evidence(found: list[CopyKind]) -> list[Evidence]:
    evidence = [Evidence("copies' time on the device", sum(one.seconds for one in found), "seconds", SOURCE)]
    calls = sum(one.call_seconds or 0.0 for one in found)
    evidence.append(Evidence("host's time in their calls", calls, "seconds", SOURCE))
    copied = sum(one.bytes or 0 for one in found)
    if copied:
        rate = f"{size(round(copied / sum(one.seconds for one in found)))}/s"
        evidence.append(Evidence("copied", copied, "bytes", SOURCE))
        evidence.append(Evidence("rate", rate, "", SOURCE))
    return evidence
