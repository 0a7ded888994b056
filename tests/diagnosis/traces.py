"""Traces whose breakdown can be worked out by hand: in the folder of a run, or alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_efficient.records.trace import TraceBreakdown
from hf_efficient.trace.breakdown import trace_breakdown
from tests.trace.made_trace import HEAD, call, on_device, write_trace

__all__ = ["ALL_REDUCE", "MATMUL", "broken_down", "kernels", "leave_trace"]

MATMUL = "ampere_bf16_s16816gemm_bf16_128x128"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)"


def kernels(*found: tuple[str, float, float, float], first: int = 1, stream: int = 7) -> list[dict[str, Any]]:
    """Kernels and the calls that launched them.

    Args:
        found: name, microseconds of start and end, and when its call began, which takes one.
        first: number of the first.
        stream: that they run on.
    """
    events = []
    for number, (name, start, end, called) in enumerate(found, first):
        events.append(call("cudaLaunchKernel", called, called + 1, number))
        events.append(on_device("kernel", name, start, end, number, stream=stream))
    return events


def broken_down(folder: Path, events: Sequence[dict[str, Any]], name: str = "NVIDIA Test GPU") -> TraceBreakdown:
    """Of a trace that holds these events, on a device of this name."""
    head = {**HEAD, "deviceProperties": [{"id": 0, "name": name}]}
    return trace_breakdown(write_trace(folder / "alone.json", list(events), head))


def leave_trace(folder: Path, events: Sequence[dict[str, Any]]) -> None:
    """Where the profiler of a run puts it."""
    (folder / "profile").mkdir(parents=True)
    write_trace(folder / "profile" / "trace.rank0.cycle0.pt.trace.json", list(events))
