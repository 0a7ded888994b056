"""Energy of a run, from a counter, from power samples, or estimated; and the carbon that it stands for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "JOULES_PER_KWH",
    "Energy",
    "co2e_grams",
    "energy_from_counter",
    "energy_from_power",
    "energy_from_tdp",
    "kilowatt_hours",
]

JOULES_PER_KWH = 3_600_000.0
"""1 kWh = 1000 W * 3600 s."""


@dataclass(frozen=True)
class Energy:
    """Energy over a time.

    Attributes:
        joules: energy; over ``covered_seconds`` alone.
        source: ``counter``, ``power_samples`` or ``tdp``.
        covered_seconds: time that the figure covers.
        missing_seconds: time between the first and the last reading that it does not cover.
    """

    joules: float
    source: Literal["counter", "power_samples", "tdp"]
    covered_seconds: float
    missing_seconds: float = 0.0

    @property
    def estimated(self) -> bool:
        """Whether nothing was measured: the figure comes from the vendor's TDP."""
        return self.source == "tdp"


def energy_from_power(samples: Iterable[tuple[float, float]], *, max_gap_seconds: float = 10.0) -> Energy | None:
    """Trapezoids between power samples at irregular times.

    Between neighbours ``(t0, p0)`` and ``(t1, p1)`` the energy is ``(t1 - t0) * (p0 + p1) / 2``. Where they lie
    further apart than ``max_gap_seconds`` (a sampler that died, a suspended machine) nothing is claimed: the time is
    counted as missing.

    Hand-worked: (0 s, 100 W), (2 s, 200 W), (3 s, 200 W): 2 * 150 + 1 * 200 = 500 J.

    Args:
        samples: seconds of a monotonic clock and watts, in ascending time.
        max_gap_seconds: the longest distance that is bridged.

    Returns:
        None where fewer than two samples were taken.

    Raises:
        ValueError: times run backwards, or a power is negative or not finite.
    """
    joules, covered, missing, count = [], [], [], 0
    for (start, before), (end, after) in itertools.pairwise(_checked(samples, "power samples", "W")):
        count += 1
        if end - start > max_gap_seconds:
            missing.append(end - start)
        else:
            covered.append(end - start)
            joules.append((end - start) * (before + after) / 2)
    if not count:
        return None
    return Energy(math.fsum(joules), "power_samples", math.fsum(covered), math.fsum(missing))


def _checked(readings: Iterable[tuple[float, float]], what: str, unit: str) -> Iterable[tuple[float, float]]:
    last = -math.inf
    for seconds, value in readings:
        if not seconds >= last:
            raise ValueError(f"{what} run backwards: {seconds} s after {last} s")
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{what}: {value} {unit} at {seconds} s")
        last = seconds
        yield seconds, value


def energy_from_counter(readings: Iterable[tuple[float, float]], *, range_joules: float | None = None) -> Energy | None:
    """Differences of a counter that runs on, or wraps around.

    A reading below the one before means that the counter wrapped once, where its range is known (RAPL's
    ``max_energy_range_uj``): the difference is ``range - before + after``. Where the counter has no range (NVML's
    counts since the driver was loaded) it means a reset: that stretch is counted as missing.

    Hand-worked, range 1000 J: 900, 980, 30: 80 + (1000 - 980 + 30) = 130 J.

    Args:
        readings: seconds of a monotonic clock and joules, in ascending time. Two wraps between neighbours cannot be
            seen: read more often than the counter can run through its range.
        range_joules: the value at which it starts again from 0; None where it does not wrap.

    Returns:
        None where fewer than two readings were taken.

    Raises:
        ValueError: times run backwards, or a reading is negative, not finite, or above the range.
    """
    joules, covered, missing, count = [], [], [], 0
    for (start, before), (end, after) in itertools.pairwise(_checked(readings, "counter readings", "J")):
        count += 1
        if range_joules is not None and max(before, after) > range_joules:
            raise ValueError(f"a counter of range {range_joules} J reads {max(before, after)} J")
        if after < before and range_joules is None:
            missing.append(end - start)
            continue
        covered.append(end - start)
        joules.append(after - before if after >= before else (range_joules or 0.0) - before + after)
    if not count:
        return None
    return Energy(math.fsum(joules), "counter", math.fsum(covered), math.fsum(missing))


def energy_from_tdp(tdp_watts: float, seconds: float, *, devices: int = 1, utilization: float | None = None) -> Energy:
    """``tdp * utilization * seconds * devices``: an estimate, and marked as one.

    The thermal design power is what a device draws at most for long; a device that works half of the time draws more
    than half of it, for it idles at a tenth or so. Without a utilization the estimate is the upper bound.

    Hand-worked: 400 W, 3600 s, 2 devices, 0.75: 2,160,000 J = 0.6 kWh.

    Args:
        tdp_watts: thermal design power of one device.
        seconds: wall time.
        devices: how many.
        utilization: share of the time that they worked, 0 to 1; None for all of it.

    Raises:
        ValueError: a figure is negative, or the utilization is outside 0 to 1.
    """
    share = 1.0 if utilization is None else utilization
    if tdp_watts < 0 or seconds < 0 or devices < 0:
        raise ValueError(f"an energy of {devices} devices of {tdp_watts} W over {seconds} s")
    if not 0 <= share <= 1:
        raise ValueError(f"utilization {share} is outside 0 to 1")
    return Energy(tdp_watts * share * seconds * devices, "tdp", seconds)


def kilowatt_hours(joules: float) -> float:
    """``joules / 3,600,000``. Hand-worked: 9,000,000 J = 2.5 kWh."""
    return joules / JOULES_PER_KWH


def co2e_grams(joules: float | None, grams_per_kwh: float | None) -> float | None:
    """Grams of CO2 equivalent: ``kWh * intensity``; None where either is unknown.

    The devices' energy alone: no cooling, no power supply losses, no making of the hardware.

    Hand-worked: 9,000,000 J at 400 g/kWh: 2.5 * 400 = 1000 g.

    Raises:
        ValueError: the intensity is negative or not finite.
    """
    if joules is None or grams_per_kwh is None:
        return None
    if not (math.isfinite(grams_per_kwh) and grams_per_kwh >= 0):
        raise ValueError(f"a grid intensity of {grams_per_kwh} gCO2e/kWh")
    return kilowatt_hours(joules) * grams_per_kwh
