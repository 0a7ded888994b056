"""Percentiles of step times."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["WARM_UP_RULE", "percentile", "warm_up_count"]

WARM_UP_STEPS = 3
WARM_UP_RULE = f"the first {WARM_UP_STEPS} steps of each train() call, or half its steps where it did fewer than 6"


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The value below which this share of the others lies, linear between neighbours; None of nothing.

    Args:
        ordered: ascending.
        share: between 0 and 1; position ``share * (n - 1)`` counted from 0.
    """
    if not ordered:
        return None
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def warm_up_count(steps: int) -> int:
    """How many of the first steps of a ``train()`` call count as warm-up (``WARM_UP_RULE``)."""
    return min(WARM_UP_STEPS, steps // 2)
