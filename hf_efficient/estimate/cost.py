"""Money, energy, carbon and disk space of a run; what it takes on machines that can be taken away at any time.

A price of None is unknown and makes every figure None; a price of 0 is a machine that costs nothing more.

Spot machines: preemptions come at random, at a mean distance M, whatever happened before (a Poisson process). A run
works for tau seconds, saves for delta, and so on. When the machine is taken away, the work since the last save is lost,
and after a restart of R seconds it is done again. A restart can be cut short too.

The expected time of a piece of L = tau + delta: a first try takes L; each later one needs R + L without a preemption.
A try of x seconds that starts over whenever it is cut short takes M (e^(x / M) - 1) on average. The first try ends,
done or not, after M (1 - e^(-L / M)) on average, and fails with probability 1 - e^(-L / M), so

    E(L) = (1 - e^(-L / M)) (M + M (e^((R + L) / M) - 1)) = M e^(R / M) (e^(L / M) - 1)

and a run of W seconds of work takes W / tau of them: Daly's complete cost function. While a machine runs it is taken
away at rate 1 / M, so the expected number of preemptions is the expected running time over M.

Source: Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
Systems 22 (2006), 303-312, doi 10.1016/j.future.2004.11.016. Young, "A first order approximation to the optimum
checkpoint interval", Communications of the ACM 17 (1974), 530-531, doi 10.1145/361147.361115.

Left out: a notice before the machine is taken (a run that saves in time loses less), prices that move.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

SECONDS_PER_HOUR = 3600.0


def cost_usd(seconds: float, price_usd_per_hour: float | None) -> float | None:
    return None if price_usd_per_hour is None else seconds / SECONDS_PER_HOUR * price_usd_per_hour


def cost_per_million_tokens(cost: float | None, tokens: int | None) -> float | None:
    return None if cost is None or not tokens else cost / tokens * 1_000_000


# e^709 is the largest power that a float holds.
_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True)
class SpotRun:
    """A run on spot machines, in expectation; figures are None, with a ``reason``, where it would hardly ever end."""

    preemptions: float | None
    paid_seconds: float | None
    reason: str | None = None


def daly_interval(checkpoint_seconds: float, mean_seconds_between_preemptions: float) -> float:
    """Seconds of work between two saves that cost least, to a higher order; the restart does not matter. With x = delta
    / (2 M): ``sqrt(2 delta M) (1 + sqrt(x) / 3 + x / 9) - delta`` for delta < 2 M, else M: Young's first-order
    ``sqrt(2 delta M)``, corrected. It solves e^(-(tau + delta) / M) = 1 - tau / M: there the derivative is 0."""
    mean = mean_seconds_between_preemptions
    x = checkpoint_seconds / (2 * mean)
    if x >= 1:
        return mean
    return math.sqrt(2 * checkpoint_seconds * mean) * (1 + math.sqrt(x) / 3 + x / 9) - checkpoint_seconds


def seconds_undone(interval_seconds: float, checkpoint_seconds: float, mean_seconds_between_failures: float) -> float:
    """Work and saving that a failure undoes, on average. A piece is L = tau + delta long; of those that a failure ends,
    its moment t has the density e^(-t / M) / (M (1 - e^(-L / M))), so the mean is ``M - L / (e^(L / M) - 1)``: about
    L / 2 for L much shorter than M. What a restart takes is not in it."""
    mean, piece = mean_seconds_between_failures, interval_seconds + checkpoint_seconds
    x = piece / mean
    if x > _LARGEST_EXPONENT:
        return mean
    return piece * (0.5 - x / 12) if x < 1e-3 else mean - piece / math.expm1(x)


def observed_mean(assumed_seconds: float, failures: int, lived_seconds: float) -> float:
    """Seconds between two failures, after so many in so long. The assumption weighs as much as one failure seen (the
    rate has a gamma prior of shape 1): ``(M0 + T) / (1 + n)``."""
    return (assumed_seconds + lived_seconds) / (1 + failures)


def spot_run(
    work_seconds: float,
    checkpoint_seconds: float,
    mean_seconds_between_preemptions: float,
    *,
    restart_seconds: float,
    interval_seconds: float,
) -> SpotRun:
    """What a run takes, by the formula of the module. Of k machines taken one by one, the mean is a k-th of one's."""
    mean = mean_seconds_between_preemptions
    interval = min(interval_seconds, work_seconds) or interval_seconds
    for name, value in (("to save", checkpoint_seconds), ("to restart", restart_seconds)):
        if value >= mean:
            too_long = f"{value:g} s {name} are too long where machines are taken away every {mean:g} s on average"
            return SpotRun(None, None, too_long)
    if (interval + checkpoint_seconds + restart_seconds) / mean > _LARGEST_EXPONENT:
        seldom = f"a save every {interval:g} s of work is too seldom for a preemption every {mean:g} s on average"
        return SpotRun(None, None, seldom)
    whole, rest = divmod(work_seconds, interval)
    # What is left by rounding alone is no piece of its own.
    pieces = [interval] * int(whole) + ([rest] if rest > 1e-9 * work_seconds else [])
    tries = math.fsum(math.expm1((piece + checkpoint_seconds) / mean) for piece in pieces)
    paid = mean * math.exp(restart_seconds / mean) * tries
    return SpotRun(paid / mean, paid)


def checkpoints_at_once(saves: int, limit: int | None, *, keeps_best: bool, there: int = 0) -> int:
    """Checkpoints of the rest of a run that are on the disk together, at the most. The Trainer deletes an old one after
    the new one is written: one above ``save_total_limit``, two with the best. ``there``: those of a resumed run."""
    most = saves if limit is None or limit < 1 else min(saves, limit + 1 + keeps_best)
    return max(0, most - there)


JOULES_PER_KWH = 3_600_000.0
MOST_WATTS = 20_000.0  # more than any GPU or socket draws
_POWER_GAP_SECONDS = 10.0  # the longest distance between two power samples that is bridged
_WRAPS_AT_WATTS = 1000.0  # a counter that starts again is taken to be read twice within its range up to this power
_COUNTER_STEP_SECONDS = 1.0
"""Counters move in steps (NVML's every 20 to 100 ms): two readings close together may hold that of a whole step."""

Unit = Literal["joules", "watts"]
Readings = float | npt.NDArray[np.float64]


def believable(value: float, unit: Unit, range_joules: float | None = None) -> float:
    """The reading, if a meter can read so; else a ValueError."""
    most = MOST_WATTS if unit == "watts" else math.inf if range_joules is None else range_joules
    if not (math.isfinite(value) and 0 <= value <= most):
        raise ValueError(f"it reads {value:g} {unit}")
    return value


def joules_between(
    before: tuple[Readings, Readings], after: tuple[Readings, Readings], unit: Unit, range_joules: float | None = None
) -> npt.NDArray[np.float64]:
    """Energy between two readings, each the seconds of a monotonic clock and a value; NaN where they give none. Of
    power ``(t1 - t0) * (p0 + p1) / 2``, up to 10 s apart: beyond that the sampler died, or the machine slept. Of a
    counter the difference. A lower reading means that it wrapped once, where its range is known (RAPL's
    ``max_energy_range_uj``) and time allows no second wrap: ``range - before + after``. Without a range (NVML counts
    since the driver was loaded) it is a reset, and so is a difference that no device draws."""
    (start, low), (end, high) = before, after
    passed = np.subtract(end, start)
    if unit == "watts":
        return np.where(passed <= _POWER_GAP_SECONDS, passed * np.add(low, high) / 2, np.nan)
    difference, too_long = np.subtract(high, low), np.inf
    if range_joules is not None:
        difference = np.where(difference < 0, difference + range_joules, difference)
        too_long = range_joules / _WRAPS_AT_WATTS
    most = MOST_WATTS * np.maximum(passed, _COUNTER_STEP_SECONDS)
    return np.where((passed <= too_long) & (difference >= 0) & (difference <= most), difference, np.nan)


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
    """``kWh * intensity``, of the devices' energy alone: no cooling, no losses, no making of the hardware."""
    return None if joules is None or grams_per_kwh is None else kilowatt_hours(joules) * grams_per_kwh
