"""A device that waits while the host does something else than launching."""

from __future__ import annotations

from hf_efficient.diagnosis.trace_rules.rule import SOURCE, cost_of, gain_of, on_device
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.records.trace import TraceBreakdown
from hf_efficient.records.trace_device import DeviceBreakdown
from hf_efficient.units import share, short_seconds

__all__ = ["trace_host_bound"]

_TOO_MUCH = 0.1
_LATER = "trace later steps: in the first ones the allocator asks the driver for memory"
_WORKERS = "load data beside the training: more workers (train.dataloader_num_workers)"
_ALLOCATING = ("cudaMalloc", "cudaFree", "hipMalloc", "hipFree")
_LOADING = ("dataloader", "enumerate(", "__next__", "collate", "_mp_fetch", "tokeniz")


def trace_host_bound(trace: TraceBreakdown, device: DeviceBreakdown) -> Finding | None:
    """In a tenth of its time or more the next work was not submitted when the device ran out of it."""
    idle, window = device.busy.idle, device.busy.window_seconds
    if window <= 0 or idle.host_bound_seconds < _TOO_MUCH * window:
        return None
    gaps = [gap for gap in device.gaps if gap.cause == "host_bound"]
    evidence = [
        Evidence("waits for the host", idle.host_bound_seconds, "seconds", SOURCE),
        Evidence("such waits", idle.host_bound_gaps, "count", SOURCE),
    ]
    for gap in gaps[:3]:
        doing = ", ".join(name for name, _ in gap.host[:2]) or "nothing that was recorded"
        evidence.append(Evidence(f"a wait, during {doing}", gap.seconds, "seconds", SOURCE))
    waited_in_syncs = sum(one.idle_after_seconds for one in trace.syncs)
    what = _what([name for gap in gaps for name, _ in gap.host], waited_in_syncs >= idle.host_bound_seconds / 2)
    gain = None if what == _LATER else gain_of(device, idle.host_bound_seconds, "at most: none of these waits")
    return Finding(
        rule="trace_host_bound",
        title=f"{on_device(device)} waits for the host in {share(idle.host_bound_seconds / window)} of the time, the "
        f"longest for {short_seconds(gaps[0].seconds) if gaps else 'unknown'}",
        severity="info" if what == _LATER else "warning",
        confidence="measured",
        evidence=evidence,
        cost=cost_of(idle.host_bound_seconds),
        remedies=[Remedy(what, _overrides(what), gain=gain)],
    )


def _what(doing: list[str], synchronises: bool) -> str:
    if doing and doing[0].startswith(_ALLOCATING):
        return _LATER
    if any(part in name.lower() for name in doing for part in _LOADING):
        return _WORKERS
    if synchronises:
        return "read no values back from the device within a step (see the waits below, by place)"
    return "look at what the host does in the longest gaps: Python, logging, callbacks"


def _overrides(what: str) -> dict[str, int]:
    return {"train.dataloader_num_workers": 4} if what == _WORKERS else {}
