"""What readings of a meter stand for: the same where they are taken and where they are added up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Literal

from hf_efficient.estimate.energy import Stretch, counter_stretches, power_stretches

MOST_WATTS = 20_000.0
"""More than any GPU or socket draws."""

_WRAPS_AT_WATTS = 1000.0
"""A counter that starts again is taken to be read twice within its range up to this power."""


def believable(value: float, unit: Literal["joules", "watts"], range_joules: float | None = None) -> float:
    """The reading, if a meter can read so.

    Raises:
        ValueError: it is negative, not finite, above the counter's range, or more power than there is.
    """
    most = MOST_WATTS if unit == "watts" else math.inf if range_joules is None else range_joules
    if not (math.isfinite(value) and 0 <= value <= most):
        raise ValueError(f"it reads {value:g} {unit}")
    return value


def stretches(
    readings: Iterable[tuple[float, float]], unit: Literal["joules", "watts"], range_joules: float | None = None
) -> Iterator[Stretch]:
    """What lies between readings, and what does not tell.

    Counters are bridged over any gap, those that start again over one in which they cannot do so twice; a difference
    that no device draws is a reset. Power samples are bridged over 10 s.

    Args:
        readings: seconds of a monotonic clock with joules or watts, ascending.
        unit: which.
        range_joules: where the counter starts again from 0; None where it does not.

    Raises:
        ValueError: as for ``believable``, or times run backwards.
    """
    if unit == "watts":
        return power_stretches(readings)
    gap = None if range_joules is None else range_joules / _WRAPS_AT_WATTS
    return counter_stretches(readings, range_joules=range_joules, max_gap_seconds=gap, max_watts=MOST_WATTS)
