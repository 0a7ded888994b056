"""How much of the time a CUDA device waits for the host to launch its next kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.traced import traced_device
from hf_efficient.records.findings import Evidence

__all__ = ["LaunchWaits", "launch_waits"]

_AHEAD = 0.95
_LOW = 0.35
_TIMED = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class LaunchWaits:
    """Of a device.

    Attributes:
        share: of its time that it waits within a step's work; None: it waits, and how long is not known.
        is_waiting: whether the launches are what it waits for.
        traced: whether a trace tells it, or the step records alone.
        evidence: the figures.
    """

    share: float | None
    is_waiting: bool
    traced: bool
    evidence: list[Evidence]


def launch_waits(case: Case) -> LaunchWaits | None:
    """From the trace where there is one; else from the device's own events and FLOPs; None where neither is there.

    A trace tells each gap (``trace/idle.py``): gaps below 30 microseconds are the launches' own. The records tell
    whether the host ever runs ahead: where it spends as long on submitting a step as the device
    takes for it, and the arithmetic is far below the peak, the device follows the host.
    """
    return _of_trace(case) or _of_records(case)


def _of_trace(case: Case) -> LaunchWaits | None:
    device = traced_device(case)
    if device is None or device.launches is None or device.busy.window_seconds <= 0:
        return None
    idle, launches = device.busy.idle, device.launches
    share = idle.launch_bound_seconds / device.busy.window_seconds
    source = "profile/trace.rank0"
    evidence = [
        Evidence("device waits for the next launch", share, "share", source),
        Evidence("device idle altogether", device.busy.idle_share, "share", source),
        Evidence("kernels a second", launches.kernels_per_second, "count", source),
        Evidence("median kernel", launches.length.p50_seconds, "seconds", source),
        Evidence("kernels shorter than their launch", launches.short_share, "share", source),
    ]
    if launches.call is not None:
        evidence.append(Evidence("median call that launches one", launches.call.p50_seconds, "seconds", source))
    return LaunchWaits(share, idle.launch_bound_seconds >= idle.host_bound_seconds, True, evidence)


def _of_records(case: Case) -> LaunchWaits | None:
    first, used = case.first, case.account.work.hfu
    if first is None or used is None or not all(name in first.device_seconds for name in _TIMED):
        return None
    steady = first.steady
    device = float(np.nansum([first.device_seconds[name][steady] for name in _TIMED]))
    host = float(np.sum([first.phase(name)[steady] for name in _TIMED]))
    if device <= 0:
        return None
    evidence = [
        Evidence("host's time to submit a step, over the device's", host / device, "share", "steps.jsonl"),
        Evidence("hardware FLOP/s over the peak", used, "share", "run.json: work.hfu"),
    ]
    return LaunchWaits(None, host >= _AHEAD * device and used < _LOW, False, evidence)
