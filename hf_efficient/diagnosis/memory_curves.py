"""How memory grew over the steps of rank 0, on the device and in its process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.machine_load import in_the_loop
from hf_efficient.estimate.growth import steady_growth

__all__ = ["Growth", "device_growth", "host_growth"]

_SET_APART = 0.1
Column = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Growth:
    """Memory over the steps after warm-up.

    Attributes:
        known: how many readings there are.
        bytes_per_step: None where it does not grow steadily.
        first_bytes: at their beginning.
        grown_bytes: over them; 0 where it does not grow steadily.
        left_bytes: that are free at their end; None where that is not known.
    """

    known: int
    bytes_per_step: float | None
    first_bytes: float
    grown_bytes: float
    left_bytes: float | None


def device_growth(case: Case) -> Growth | None:
    """Of the tensors on a CUDA device, by their peak in each step; None where it is not known."""
    first, total = case.first, case.settings("device").get("memory_bytes")
    if first is None:
        return None
    peaks = first.peak_allocated_bytes
    steps = np.arange(len(first), dtype=np.float64)
    kept = np.isfinite(peaks) & first.steady & (steps >= _SET_APART * len(first))
    if not kept.any():
        return None
    left = None if not total else float(total) - float(peaks[kept][-1])
    return _growth(steps[kept], peaks[kept], left)


def host_growth(case: Case) -> Growth | None:
    """Of the resident memory of the process, as the sampler read it; None where it is not known."""
    series = case.series
    if series is None or case.first is None:
        return None
    read = [place for place in in_the_loop(case) if series.system.rss_bytes.mean[place] is not None]
    if not read:
        return None
    times = np.array([series.system.started_at_seconds[place] for place in read])
    resident = np.array([series.system.rss_bytes.mean[place] for place in read], dtype=np.float64)
    steps = _steps_at(case, times)
    kept = steps >= max(_SET_APART * steps[-1], float(np.argmax(case.first.steady)))
    if not kept.any():
        return None
    left = series.system.host_available_bytes.low[read[-1]]
    return _growth(steps[kept], resident[kept], left)


def _steps_at(case: Case, times: Column) -> Column:
    """How many steps were done at these times of the run."""
    assert case.series is not None
    steps = case.series.steps
    ends = np.array(steps.started_at_seconds) + np.array(steps.wall_seconds)
    starts = np.array([steps.started_at_seconds[0], *ends])
    return np.asarray(np.interp(times, starts, np.concatenate([[0], np.cumsum(steps.steps)])), dtype=np.float64)


def _growth(steps: Column, held: Column, left: float | None) -> Growth:
    slope = steady_growth(steps, held)
    grown = 0.0 if slope is None else slope * float(steps[-1] - steps[0])
    return Growth(len(steps), slope, float(held[0]), grown, left)
