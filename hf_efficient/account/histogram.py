"""How values are distributed, for a plot."""

from __future__ import annotations

from collections.abc import Sequence

from hf_efficient.records.series import Histogram

__all__ = ["histogram"]

MOST_BINS = 60
_LOG_FROM = 4.0


def histogram(values: Sequence[float]) -> Histogram:
    """Counts over bins of equal width; of equal ratio where the largest value is more than four times the smallest.

    There are as many bins as the square root of the number of values, rounded up, and at most 60. All values alike
    give one bin from the value to itself.

    Args:
        values: finite, in any order.
    """
    import numpy

    held = numpy.asarray(values, dtype=numpy.float64)
    if not held.size:
        return Histogram()
    low, high = float(held.min()), float(held.max())
    if low == high:
        return Histogram("linear", [low, high], [held.size])
    bins = min(MOST_BINS, int(numpy.ceil(numpy.sqrt(held.size))))
    is_log = low > 0 and high > _LOG_FROM * low
    edges = numpy.geomspace(low, high, bins + 1) if is_log else numpy.linspace(low, high, bins + 1)
    counts, _ = numpy.histogram(held, edges)
    return Histogram("log" if is_log else "linear", edges.tolist(), counts.tolist())
