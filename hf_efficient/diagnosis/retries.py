"""How often the allocator had to free its cache, and what that took."""

from __future__ import annotations

import numpy as np

from hf_efficient.diagnosis.case import Case

__all__ = ["retries_after_warm_up", "retry_seconds"]


def retries_after_warm_up(case: Case) -> int:
    """On rank 0, over all its processes, each of which counts from its own start; 0 without a CUDA device."""
    first = case.first
    if first is None:
        return 0
    told = first.allocation_retries[first.steady]
    known = told[np.isfinite(told)]
    return int(np.maximum(np.diff(known), 0).sum())


def retry_seconds(case: Case) -> float | None:
    """What the steps in which the count rose took beyond the median of the others; None where there are none."""
    first = case.first
    if first is None:
        return None
    rose = np.diff(first.allocation_retries, prepend=first.allocation_retries[:1]) > 0
    rose &= first.steady
    others = first.step_seconds[first.steady & ~rose]
    if not rose.any() or not len(others):
        return None
    return float(np.maximum(first.step_seconds[rose] - np.median(others), 0).sum())
