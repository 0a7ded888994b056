"""The breakdown of the trace that a run's profiler left."""

from __future__ import annotations

import functools
import logging
from pathlib import Path

from hf_efficient.diagnosis.case import Case
from hf_efficient.errors import OutputError
from hf_efficient.records.trace import TraceBreakdown
from hf_efficient.records.trace_device import DeviceBreakdown
from hf_efficient.trace.breakdown import trace_breakdown

__all__ = ["traced", "traced_device"]

logger = logging.getLogger(__name__)

_MOST_BYTES = 64 << 20
"""Of the file as it lies there; a larger one takes longer than a diagnosis at the end of a run may."""


def traced(case: Case) -> TraceBreakdown | None:
    """Of rank 0, the last cycle; None without a trace, or with one that cannot be read or is very large."""
    found = sorted(Path(case.directory, "profile").glob("trace.rank0.*.json*"), key=lambda path: path.stat().st_mtime)
    if not found or found[-1].stat().st_size > _MOST_BYTES:
        return None
    return _read(found[-1], found[-1].stat().st_mtime_ns)


def traced_device(case: Case) -> DeviceBreakdown | None:
    """The busiest device of it; None where it has no events of any."""
    found = traced(case)
    if found is None or not found.devices:
        return None
    return max(found.devices, key=lambda device: device.busy.busy_seconds)


@functools.lru_cache(maxsize=2)
def _read(path: Path, _changed_ns: int) -> TraceBreakdown | None:
    try:
        return trace_breakdown(path)
    except OutputError as error:
        logger.debug("A trace is left out of the diagnosis: %s", error)
        return None
