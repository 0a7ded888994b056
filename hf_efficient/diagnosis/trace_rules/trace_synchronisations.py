"""Waits of the host for the device that leave the device without work."""

from __future__ import annotations

from hf_efficient.diagnosis.trace_rules.rule import SOURCE, cost_of, gain_of, on_device
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.records.trace import TraceBreakdown
from hf_efficient.records.trace_device import DeviceBreakdown
from hf_efficient.records.trace_host import SyncSite
from hf_efficient.units import share

__all__ = ["trace_synchronisations"]

_TOO_MUCH = 0.03
_NAMED = 5


def trace_synchronisations(trace: TraceBreakdown, device: DeviceBreakdown) -> Finding | None:
    """The device was idle after such waits in three hundredths of its time or more; those outside of steps left out."""
    sites = [one for one in trace.syncs if one.outside_steps < one.count and one.idle_after_seconds > 0]
    idle, window = sum(one.idle_after_seconds for one in sites), device.busy.window_seconds
    if window <= 0 or idle < _TOO_MUCH * window:
        return None
    sites = sorted(sites, key=lambda one: -one.idle_after_seconds)
    evidence = [
        Evidence(f"idle after {one.count} waits in {_place(one)}", one.idle_after_seconds, "seconds", SOURCE)
        for one in sites[:_NAMED]
    ]
    if trace.steps:
        within = sum(one.count - one.outside_steps for one in sites)
        evidence.append(Evidence("waits per step", within / len(trace.steps), "count", SOURCE))
    return Finding(
        rule="trace_synchronisations",
        title=f"{on_device(device)} runs out of work in {share(idle / window)} of the time because the host waits for "
        f"it, most of all in {_place(sites[0])}",
        severity="warning",
        confidence="measured",
        evidence=evidence,
        cost=cost_of(idle),
        remedies=[
            Remedy(
                "keep values on the device, and read them back when something is logged, not in every step",
                gain=gain_of(device, idle, "the device never runs out of work there"),
            )
        ],
        explains=["trace_host_bound"] if idle >= device.busy.idle.host_bound_seconds / 2 else [],
    )


def _place(site: SyncSite) -> str:
    return site.site or (f"{site.operator} ({site.call})" if site.operator else site.call)
