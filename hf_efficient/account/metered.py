"""The readings of a meter added up, so that the energy of any stretch of time can be told."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from hf_efficient.account.system import MeterSeries
from hf_efficient.estimate.metering import stretches

__all__ = ["Metered", "once_each"]


@dataclass(frozen=True)
class Metered:
    """A series added up.

    Attributes:
        series: what was read.
        times: of the readings.
        flowed: joules from the first reading to each of them; level where the readings do not tell.
        covered_seconds: time over which they do.
    """

    series: MeterSeries
    times: list[float]
    flowed: list[float]
    covered_seconds: float

    @classmethod
    def of(cls, series: MeterSeries) -> Metered:
        """Add them up."""
        times, flowed, covered = list(series.seconds[:1]), [0.0] * len(series.seconds[:1]), []
        for stretch in stretches(series.readings, series.unit, series.range_joules):
            times.append(stretch.end)
            flowed.append(flowed[-1] + (stretch.joules or 0.0))
            if stretch.joules is not None:
                covered.append(stretch.end - stretch.start)
        return cls(series, times, flowed, math.fsum(covered))

    @property
    def joules(self) -> float:
        """All that flowed."""
        return self.flowed[-1] if self.flowed else 0.0

    def until(self, at: float) -> float:
        """What had flowed by then."""
        index = bisect_right(self.times, at)
        if index == 0:
            return 0.0
        if index == len(self.times):
            return self.flowed[-1]
        start, end = self.times[index - 1], self.times[index]
        before, after = self.flowed[index - 1], self.flowed[index]
        return before + (after - before) * (at - start) / (end - start)


def once_each(metered: Sequence[Metered]) -> list[Metered]:
    """A meter that two ranks read is counted once, by the one that read it longer."""
    best: dict[tuple[str, int], Metered] = {}
    for one in metered:
        key = (one.series.id, one.series.process)
        if one.covered_seconds > 0 and (key not in best or one.covered_seconds > best[key].covered_seconds):
            best[key] = one
    return list(best.values())
