"""Statistics of paired measurements: the median of the pairs, and the interval in which it lies."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
"""What an interval must hold the median with before anything is said of it; six pairs are the fewest that do."""


@dataclass(frozen=True)
class Spread:
    """A median and the interval in which it lies.

    Attributes:
        median: of the pairs.
        low: lower end of the interval.
        high: upper end.
        confidence: the probability that the interval holds the true median, 0 to 1.
        pairs: how many there were.
    """

    median: float
    low: float
    high: float
    confidence: float
    pairs: int

    def holds(self, value: float) -> bool:
        """Whether the value lies in the interval; for the value of equality that is "no difference"."""
        return self.low <= value <= self.high

    @property
    def tells(self) -> bool:
        """Whether there are enough pairs to say anything."""
        return self.confidence >= CONFIDENCE


def median_spread(values: Sequence[float], confidence: float = CONFIDENCE) -> Spread:
    """The median, and the narrowest symmetric pair of order statistics that holds it with at least this confidence.

    Between the ``k``-th smallest and the ``k``-th largest of ``n`` independent values lies the true median, whatever
    they are distributed like, with probability ``1 - 2 * sum(C(n, i) for i < k) / 2**n`` (David and Nagaraja, Order
    Statistics, 3rd edition, section 7.1). With five values or fewer no interval reaches 95%; it is then from the
    smallest to the largest, and ``confidence`` says what that is worth.

    Hand-worked: for n = 10, k = 2 the probability is 1 - 2 * (1 + 10) / 1024 = 0.978516, for k = 3 it is 0.890625; so
    the interval is from the 2nd smallest to the 2nd largest.

    Args:
        values: one per pair, at least one.
        confidence: at least 0, below 1.

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("no pairs: a spread needs at least one")
    ordered = sorted(values)
    n = len(ordered)
    k = 1
    while k < (n + 1) // 2 and _coverage(n, k + 1) >= confidence:
        k += 1
    return Spread(statistics.median(ordered), ordered[k - 1], ordered[n - k], _coverage(n, k), n)


def _coverage(n: int, k: int) -> float:
    return max(0.0, 1 - 2 * sum(math.comb(n, i) for i in range(k)) / 2**n)
