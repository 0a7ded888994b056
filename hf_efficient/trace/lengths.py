"""How long kernels are, and how they are submitted."""

from __future__ import annotations

import numpy as np

from hf_efficient.records.trace_kernels import LaunchBreakdown, Percentiles
from hf_efficient.trace.table import Floats
from hf_efficient.trace.work import DeviceWork

__all__ = ["SHORT_KERNEL_SECONDS", "launch_breakdown", "percentiles"]

# About what the host needs to submit one from eager PyTorch: a kernel that is shorter leaves the device waiting.
SHORT_KERNEL_SECONDS = 10e-6
_GRAPH_LAUNCH = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")


def launch_breakdown(work: DeviceWork) -> LaunchBreakdown | None:
    """Of the kernels of a device; None where it ran none."""
    kernels = work.only(work.computes | work.communicates)
    if not len(kernels):
        return None
    lengths = (kernels.end - kernels.start) / 1e6
    short = lengths < SHORT_KERNEL_SECONDS
    graphs, launched = _graph_launched(kernels), kernels.calls >= 0
    single = kernels.only(launched & ~graphs)
    calls = np.unique(kernels.calls[launched])
    call_lengths = (kernels.events.end[calls] - kernels.events.start[calls]) / 1e6
    return LaunchBreakdown(
        kernels=len(kernels),
        kernels_per_second=len(kernels) / (work.window / 1e6) if work.window else 0.0,
        graph_kernels=int(graphs.sum()),
        length=percentiles(lengths),
        short_kernel_seconds=SHORT_KERNEL_SECONDS,
        short_share=float(short.mean()),
        short_time_share=float(lengths[short].sum() / lengths.sum()) if lengths.sum() else 0.0,
        call_seconds=float(call_lengths.sum()) if len(calls) else None,
        call=percentiles(call_lengths) if len(calls) else None,
        delay=percentiles((single.start - single.submitted) / 1e6) if len(single) else None,
    )


def percentiles(seconds: Floats) -> Percentiles:
    """Of at least one value."""
    return Percentiles(*(float(value) for value in np.percentile(seconds, (10, 50, 90, 99, 100))))


def _graph_launched(kernels: DeviceWork) -> np.ndarray:
    events = kernels.events
    names = [number for number, name in enumerate(events.names) if name.startswith(_GRAPH_LAUNCH)]
    known = kernels.calls >= 0
    graphs: np.ndarray = known & np.isin(events.name[np.maximum(kernels.calls, 0)], names)
    return graphs
