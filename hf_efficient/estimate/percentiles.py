"""Percentiles of step times, with the warm-up set apart."""

from __future__ import annotations

from collections.abc import Sequence

WARM_UP_STEPS = 3
WARM_UP_RULE = f"the first {WARM_UP_STEPS} steps of each train() call, or half its steps where it did fewer than 6"


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The value below which this share of the others lies, linear between neighbours; None of nothing.

    With ``n`` values the position is ``h = (n - 1) * share``, and the result ``x[floor(h)] + (h - floor(h)) *
    (x[floor(h) + 1] - x[floor(h)])``: definition 7 of Hyndman and Fan (1996), numpy's default.

    Hand-worked: [1, 2, 4, 8], 0.95: h = 2.85, 4 + 0.85 * (8 - 4) = 7.4.

    Args:
        ordered: ascending.
        share: 0 to 1.

    Raises:
        ValueError: the share is outside 0 to 1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share {share} is outside 0 to 1")
    if not len(ordered):
        return None
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (ordered[above] - ordered[below]) * (position - below))


def warm_up_count(steps: int) -> int:
    """How many of the first steps of a ``train()`` call count as warm-up (``WARM_UP_RULE``).

    They hold compilation, the allocator's growth, cold caches and the first fetch of data. The rule looks at no times,
    so that a slow start never hides itself, and a comparison of two runs of equal length sets equal steps apart.
    """
    return min(WARM_UP_STEPS, steps // 2)
