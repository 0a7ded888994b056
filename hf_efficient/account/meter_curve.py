"""The readings of a meter added up, so that the energy of any stretch of time can be told."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hf_efficient.estimate.metering import stretches

__all__ = ["MeterCurve", "once_each"]

_MOST_POINTS = 4000
"""Twice as many as a plot has, and as the loop is told apart by."""

_PLAIN_SECONDS = 5.0
_PLAIN_WATTS = 1000.0
_PLAIN_RANGE_JOULES = 10_000.0
"""A counter of less may start again within the plain seconds."""


@dataclass
class MeterCurve:
    """One meter in one process.

    Attributes:
        name: what it meters.
        process: number of the process on its rank.
        id: what it is; the same where two processes read the same.
        machine: where it is.
        source: ``nvml``, ``rapl`` or ``estimate``.
        unit: ``joules`` of a counter, or ``watts``.
        range_joules: where the counter starts again from 0; None where it does not.
        note: what to know of it.
        joules: from the first reading to the last, as far as the readings tell.
        covered_seconds: time over which they do.
        times: of the readings, in seconds from the start of the process; of thousands, of some.
        flowed: joules until then.
    """

    name: str
    process: int
    id: str
    machine: str
    source: Literal["nvml", "rapl", "estimate"]
    unit: Literal["joules", "watts"]
    range_joules: float | None
    note: str
    joules: float = 0.0
    covered_seconds: float = 0.0
    times: array[float] = field(default_factory=lambda: array("d"))
    flowed: array[float] = field(default_factory=lambda: array("d"))
    _last: tuple[float, float] | None = None
    _every: int = 1
    _readings: int = 0

    def __post_init__(self) -> None:
        self._is_counter = self.unit == "joules"
        small = self.range_joules is not None and self.range_joules < _PLAIN_RANGE_JOULES
        self._plain_seconds = -1.0 if small else _PLAIN_SECONDS

    def extend(self, times: Sequence[float], values: Sequence[float]) -> None:
        """Take in readings; one from before the last is left out.

        Args:
            times: in seconds from the start of the process.
            values: what it read then, each ``believable``.
        """
        last = self._last
        for at, value in zip(times, values, strict=True):
            if last is not None:
                passed = at - last[0]
                if passed < 0:
                    continue
                # Nearly all readings are plain: what ``stretches`` says of them needs none of its cases.
                more = value - last[1] if self._is_counter else passed * (last[1] + value) / 2
                if passed <= self._plain_seconds and 0 <= more <= _PLAIN_WATTS * passed:
                    self.joules += more
                    self.covered_seconds += passed
                else:
                    self._bridge(last, (at, value))
            last = (at, value)
            if self._readings % self._every == 0:
                self._keep(at)
            self._readings += 1
        self._last = last

    def _bridge(self, before: tuple[float, float], after: tuple[float, float]) -> None:
        (stretch,) = stretches([before, after], self.unit, self.range_joules)
        if stretch.joules is not None:
            self.joules += stretch.joules
            self.covered_seconds += stretch.end - stretch.start

    def _keep(self, at: float) -> None:
        self.times.append(at)
        self.flowed.append(self.joules)
        if len(self.times) > _MOST_POINTS:
            self.times, self.flowed = self.times[::2], self.flowed[::2]
            self._every *= 2

    def until(self, at: float) -> float:
        """What had flowed by then."""
        index = bisect_right(self.times, at)
        if index == 0 or self._last is None:
            return 0.0
        start, before = self.times[index - 1], self.flowed[index - 1]
        end, after = self._last[0], self.joules
        if index < len(self.times):
            end, after = self.times[index], self.flowed[index]
        if at >= end:
            return after
        return before + (after - before) * (at - start) / (end - start)


def once_each(curves: Iterable[MeterCurve]) -> list[MeterCurve]:
    """A meter that two ranks read is counted once, by the one that read it longer."""
    best: dict[tuple[str, int], MeterCurve] = {}
    for one in curves:
        key = (one.id, one.process)
        if one.covered_seconds > 0 and (key not in best or one.covered_seconds > best[key].covered_seconds):
            best[key] = one
    return list(best.values())
