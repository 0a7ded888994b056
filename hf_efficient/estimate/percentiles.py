"""Step times: percentiles with the warm-up set apart, exact over a million steps of eight ranks.

Eight million float64 are 64 MB in an array, so nothing needs to be approximated: times are kept, and sorted once.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

__all__ = ["StepTimes", "TimeSummary", "percentile", "warmup_count"]

_WARMUP_STEPS = 10


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies, interpolated linearly between neighbours.

    With ``n`` sorted values the position is ``h = (n - 1) * share``, and the result ``x[floor(h)] + (h - floor(h)) *
    (x[floor(h) + 1] - x[floor(h)])``: definition 7 of Hyndman and Fan (1996), numpy's default.

    Hand-worked: [1, 2, 4, 8], 0.95: h = 2.85, 4 + 0.85 * (8 - 4) = 7.4.

    Args:
        ordered: values in ascending order, at least one.
        share: 0 to 1.

    Raises:
        ValueError: there is no value, or the share is outside 0 to 1.
    """
    if not len(ordered):
        raise ValueError("no values: a percentile needs at least one")
    if not 0 <= share <= 1:
        raise ValueError(f"share {share} is outside 0 to 1")
    position = (len(ordered) - 1) * share
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (position - below) * (ordered[above] - ordered[below]))


def warmup_count(steps: int) -> int:
    """Steps at the start of a segment that are warm-up: a tenth of them, rounded up, at most ten.

    They hold compilation, the allocator's growth, cold caches and the first data fetch. The rule looks at no times, so
    that a slow start never hides itself, and a comparison of two runs of equal length sets equal steps apart.

    Hand-worked: 0 of 0, 1 of 5, 1 of 10, 2 of 11, 10 of 100, 10 of 1,000,000.
    """
    return min(_WARMUP_STEPS, -(-steps // 10))


@dataclass(frozen=True)
class TimeSummary:
    """Seconds of a set of steps.

    Attributes:
        steps: how many.
        total_seconds: their sum.
        mean_seconds: their mean.
        min_seconds: the fastest, exact.
        p50_seconds: the median.
        p95_seconds: 95 of 100 steps are faster.
        p99_seconds: 99 of 100 steps are faster.
        max_seconds: the slowest, exact.
    """

    steps: int
    total_seconds: float
    mean_seconds: float
    min_seconds: float
    p50_seconds: float
    p95_seconds: float
    p99_seconds: float
    max_seconds: float


class StepTimes:
    """Collects step times, segment by segment; 8 bytes each.

    Each segment (a ``train()`` call of a run, per rank) has its own warm-up: a resumed run compiles and fills its
    caches again.
    """

    def __init__(self) -> None:
        self._segments: dict[tuple[int, int], array[float]] = {}

    def add(self, seconds: float, *, segment: int = 0, rank: int = 0) -> None:
        """One step's wall time, in the order of the steps of its segment and rank.

        Raises:
            ValueError: the time is negative or not a number.
        """
        if not seconds >= 0:
            raise ValueError(f"a step of {seconds} seconds")
        self._segments.setdefault((segment, rank), array("d")).append(seconds)

    def extend(self, times: Iterable[float], *, segment: int = 0, rank: int = 0) -> None:
        """Several steps' wall times."""
        for seconds in times:
            self.add(seconds, segment=segment, rank=rank)

    def steady(self) -> TimeSummary | None:
        """The steps after warm-up, of all segments and ranks; None where there are none."""
        return _summary([held[warmup_count(len(held)) :] for held in self._segments.values()])

    def warmup(self) -> TimeSummary | None:
        """The warm-up steps of all segments and ranks; None where there are none."""
        return _summary([held[: warmup_count(len(held))] for held in self._segments.values()])


def _summary(parts: list[array[float]]) -> TimeSummary | None:
    joined: array[float] = array("d")
    for part in parts:
        joined.extend(part)
    if not joined:
        return None
    ordered = _sorted(joined)
    total = math.fsum(joined)
    return TimeSummary(
        steps=len(joined),
        total_seconds=total,
        mean_seconds=total / len(joined),
        min_seconds=float(ordered[0]),
        p50_seconds=percentile(ordered, 0.50),
        p95_seconds=percentile(ordered, 0.95),
        p99_seconds=percentile(ordered, 0.99),
        max_seconds=float(ordered[-1]),
    )


def _sorted(values: array[float]) -> Sequence[float]:
    """Ascending; in numpy, whose copy is 8 bytes a value where a list's is 32."""
    import numpy

    return cast("Sequence[float]", numpy.sort(numpy.frombuffer(values, dtype=numpy.float64)))
