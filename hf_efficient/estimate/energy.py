"""Energy between the readings of a meter, estimates of it, and the carbon that it stands for."""

import math
from typing import Literal

JOULES_PER_KWH = 3_600_000.0
"""1 kWh = 1000 W * 3600 s."""
MOST_WATTS = 20_000.0
"""More than any GPU or socket draws."""
_POWER_GAP_SECONDS = 10.0
"""The longest distance between two power samples that is bridged."""
_WRAPS_AT_WATTS = 1000.0
"""A counter that starts again is taken to be read twice within its range up to this power."""
_COUNTER_STEP_SECONDS = 1.0
"""Counters move in steps (NVML's every 20 to 100 ms): two readings close together may hold that of a whole step."""

Unit = Literal["joules", "watts"]


def believable(value: float, unit: Unit, range_joules: float | None = None) -> float:
    """The reading, if a meter can read so; else a ValueError."""
    most = MOST_WATTS if unit == "watts" else math.inf if range_joules is None else range_joules
    if not (math.isfinite(value) and 0 <= value <= most):
        raise ValueError(f"it reads {value:g} {unit}")
    return value


def joules_between(
    before: tuple[float, float], after: tuple[float, float], unit: Unit, range_joules: float | None = None
) -> float | None:
    """Energy between two readings, each the seconds of a monotonic clock and a value; None where they give none. Of
    power ``(t1 - t0) * (p0 + p1) / 2``, up to 10 s apart: beyond that the sampler died, or the machine slept. Of a
    counter the difference. A lower reading means that it wrapped once, where its range is known (RAPL's
    ``max_energy_range_uj``) and time allows no second wrap: ``range - before + after``. Without a range (NVML counts
    since the driver was loaded) it is a reset, and so is a difference that no device draws."""
    (start, low), (end, high) = before, after
    if unit == "watts":
        return (end - start) * (low + high) / 2 if end - start <= _POWER_GAP_SECONDS else None
    difference = high - low
    if difference < 0 and range_joules is not None:
        difference += range_joules
    may_wrap_twice = range_joules is not None and end - start > range_joules / _WRAPS_AT_WATTS
    too_much = difference > MOST_WATTS * max(end - start, _COUNTER_STEP_SECONDS)
    return None if may_wrap_twice or too_much or difference < 0 else difference


def energy_from_tdp(tdp_watts: float, seconds: float, *, devices: int = 1) -> float:
    """Joules, an upper bound: the thermal design power is the most for long."""
    return tdp_watts * seconds * devices


def energy_from_cpu_seconds(
    cpu_seconds: float, seconds: float, *, cpus: float, min_watts: float, max_watts: float
) -> float:
    """``cpus * seconds * min + cpu_seconds * (max - min)``: an estimate, in joules. Cloud Carbon Footprint's model: a
    virtual CPU draws ``min + load * (max - min)``, with a mean load of ``cpu_seconds / (cpus * seconds)``. The first
    term is paid once for a machine, the second by each process. ``cpu_seconds`` are in user and kernel mode, ``cpus``
    hardware threads; 0 for the second term alone."""
    return cpus * seconds * min_watts + cpu_seconds * (max_watts - min_watts)


def kilowatt_hours(joules: float) -> float:
    return joules / JOULES_PER_KWH


def co2e_grams(joules: float | None, grams_per_kwh: float | None) -> float | None:
    """Grams of CO2 equivalent: ``kWh * intensity``; None where either is unknown. The devices' energy alone: no
    cooling, no power supply losses, no making of the hardware."""
    if joules is None or grams_per_kwh is None:
        return None
    return kilowatt_hours(joules) * grams_per_kwh
