"""Energy between the readings of a counter or of power, estimates of it, and the carbon that it stands for.

What readings of a meter stand for: the same where they are taken and where they are added up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

JOULES_PER_KWH = 3_600_000.0
"""1 kWh = 1000 W * 3600 s."""

# Counters move in steps (NVML's every 20 to 100 ms): two readings close together may hold the energy of a whole step.
_COUNTER_STEP_SECONDS = 1.0


@dataclass(frozen=True)
class Stretch:
    """The time between two readings of a meter.

    Attributes:
        start, end: seconds of a monotonic clock.
        joules: energy in between; None where the readings do not tell it.
    """

    start: float
    end: float
    joules: float | None


def power_stretches(samples: Iterable[tuple[float, float]], *, max_gap_seconds: float = 10.0) -> Iterator[Stretch]:
    """Trapezoids between power samples at irregular times.

    Between neighbours ``(t0, p0)`` and ``(t1, p1)`` the energy is ``(t1 - t0) * (p0 + p1) / 2``. Where they lie
    further apart than ``max_gap_seconds`` (a sampler that died, a suspended machine) nothing is claimed.

    Hand-worked: (0 s, 100 W), (2 s, 200 W), (3 s, 200 W): 2 * 150 J, then 1 * 200 J.
    """
    for (start, before), (end, after) in itertools.pairwise(_checked(samples, "power samples", "W")):
        known = end - start <= max_gap_seconds
        yield Stretch(start, end, (end - start) * (before + after) / 2 if known else None)


def counter_stretches(
    readings: Iterable[tuple[float, float]],
    *,
    range_joules: float | None = None,
    max_gap_seconds: float | None = None,
    max_watts: float = math.inf,
) -> Iterator[Stretch]:
    """Differences of a counter that runs on, or wraps around.

    A reading below the one before means that the counter wrapped once, where its range is known (RAPL's
    ``max_energy_range_uj``): the difference is ``range - before + after``. Where the counter has no range (NVML's
    counts since the driver was loaded) it means a reset, and nothing is claimed.

    Hand-worked, range 1000 J: 900, 980, 30: 80 J, then 1000 - 980 + 30 = 50 J.

    Args:
        readings: seconds of a monotonic clock and joules, in ascending time. Two wraps between neighbours cannot be
            seen: read more often than the counter can run through its range.
        range_joules: the value at which it starts again from 0; None where it does not wrap.
        max_gap_seconds: the longest distance between neighbours that is bridged, so that a counter that wraps cannot
            have done so twice.
        max_watts: more than the device can draw. Neighbours that stand for more are no readings of one counter (it was
            reset in between, or told nonsense), and nothing is claimed.
    """
    for (start, before), (end, after) in itertools.pairwise(_checked(readings, "counter readings", "J")):
        if range_joules is not None and max(before, after) > range_joules:
            raise ValueError(f"a counter of range {range_joules} J reads {max(before, after)} J")
        difference = after - before
        if difference < 0 and range_joules is not None:
            difference += range_joules
        too_far = max_gap_seconds is not None and end - start > max_gap_seconds
        too_much = difference > max_watts * max(end - start, _COUNTER_STEP_SECONDS)
        yield Stretch(start, end, None if too_far or too_much or difference < 0 else difference)


def _checked(readings: Iterable[tuple[float, float]], what: str, unit: str) -> Iterator[tuple[float, float]]:
    last = -math.inf
    for seconds, value in readings:
        if not seconds >= last:
            raise ValueError(f"{what} run backwards: {seconds} s after {last} s")
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{what}: {value} {unit} at {seconds} s")
        last = seconds
        yield seconds, value


def energy_from_tdp(tdp_watts: float, seconds: float, *, devices: int = 1, utilization: float | None = None) -> float:
    """``tdp * utilization * seconds * devices``: an estimate, in joules.

    The thermal design power is what a device draws at most for long; a device that works half of the time draws more
    than half of it, for it idles at a tenth or so. Without a utilization the estimate is the upper bound.

    Hand-worked: 400 W, 3600 s, 2 devices, 0.75: 2,160,000 J = 0.6 kWh.

    Args:
        utilization: share of the time that they worked, 0 to 1; None for all of it.
    """
    share = 1.0 if utilization is None else utilization
    if tdp_watts < 0 or seconds < 0 or devices < 0:
        raise ValueError(f"an energy of {devices} devices of {tdp_watts} W over {seconds} s")
    if not 0 <= share <= 1:
        raise ValueError(f"utilization {share} is outside 0 to 1")
    return tdp_watts * share * seconds * devices


def energy_from_cpu_seconds(
    cpu_seconds: float, seconds: float, *, cpus: float, min_watts: float, max_watts: float
) -> float:
    """``cpus * seconds * min + cpu_seconds * (max - min)``: an estimate, in joules.

    Cloud Carbon Footprint's model: a virtual CPU draws ``min + load * (max - min)``, and the mean load over the time is
    ``cpu_seconds / (cpus * seconds)``. Both terms add up over processes: the first is paid once for a machine, the
    second by each process for itself.

    Hand-worked: 2 CPUs, 100 s, 150 CPU seconds, 0.75 to 3.75 W: 2 * 100 * 0.75 + 150 * 3 = 600 J.

    Args:
        cpu_seconds: time that processes ran on a CPU, in user and in kernel mode.
        cpus: hardware threads that stand ready; 0 for the second term alone.
    """
    if min(cpu_seconds, seconds, cpus, min_watts, max_watts - min_watts) < 0:
        raise ValueError(
            f"an energy of {cpu_seconds} CPU seconds in {seconds} s on {cpus} CPUs of {min_watts} to {max_watts} W"
        )
    return cpus * seconds * min_watts + cpu_seconds * (max_watts - min_watts)


def kilowatt_hours(joules: float) -> float:
    """``joules / 3,600,000``. Hand-worked: 9,000,000 J = 2.5 kWh."""
    return joules / JOULES_PER_KWH


def co2e_grams(joules: float | None, grams_per_kwh: float | None) -> float | None:
    """Grams of CO2 equivalent: ``kWh * intensity``; None where either is unknown.

    The devices' energy alone: no cooling, no power supply losses, no making of the hardware.

    Hand-worked: 9,000,000 J at 400 g/kWh: 2.5 * 400 = 1000 g.
    """
    if joules is None or grams_per_kwh is None:
        return None
    if not (math.isfinite(grams_per_kwh) and grams_per_kwh >= 0):
        raise ValueError(f"a grid intensity of {grams_per_kwh} gCO2e/kWh")
    return kilowatt_hours(joules) * grams_per_kwh


MOST_WATTS = 20_000.0
"""More than any GPU or socket draws."""

_WRAPS_AT_WATTS = 1000.0
"""A counter that starts again is taken to be read twice within its range up to this power."""


def believable(value: float, unit: Literal["joules", "watts"], range_joules: float | None = None) -> float:
    """The reading, if a meter can read so."""
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
        range_joules: where the counter starts again from 0; None where it does not.
    """
    if unit == "watts":
        return power_stretches(readings)
    gap = None if range_joules is None else range_joules / _WRAPS_AT_WATTS
    return counter_stretches(readings, range_joules=range_joules, max_gap_seconds=gap, max_watts=MOST_WATTS)
