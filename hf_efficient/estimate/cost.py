"""Money and disk space of a run, and what it takes on machines that can be taken away at any time.

A price of None is unknown and makes every figure None; a price of 0 is a machine that costs nothing more.

Spot machines: preemptions come at random, at a mean distance M, whatever happened before (a Poisson process). A run
works for tau seconds, saves for delta, and so on. When the machine is taken away, the work since the last save is lost,
and after a restart of R seconds it is done again; a restart can be cut short too.

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

_SECONDS_PER_HOUR = 3600.0
_MILLION = 1_000_000


def cost_usd(seconds: float, price_usd_per_hour: float | None) -> float | None:
    return None if price_usd_per_hour is None else seconds / _SECONDS_PER_HOUR * price_usd_per_hour


def cost_per_million_tokens(cost: float | None, tokens: int | None) -> float | None:
    return None if cost is None or not tokens else cost / tokens * _MILLION


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
    ``sqrt(2 delta M)``, corrected. It is the solution of e^(-(tau + delta) / M) = 1 - tau / M, where the derivative of
    the complete cost function is 0."""
    mean = mean_seconds_between_preemptions
    x = checkpoint_seconds / (2 * mean)
    if x >= 1:
        return mean
    return math.sqrt(2 * checkpoint_seconds * mean) * (1 + math.sqrt(x) / 3 + x / 9) - checkpoint_seconds


def spot_run(
    work_seconds: float,
    checkpoint_seconds: float,
    mean_seconds_between_preemptions: float,
    *,
    restart_seconds: float,
    interval_seconds: float,
) -> SpotRun:
    """What a run takes, by the formula of the module; the last piece is as long as what is left. Of k machines taken
    one by one, the mean time is a k-th of one's."""
    mean = mean_seconds_between_preemptions
    interval = min(interval_seconds, work_seconds) or interval_seconds
    if reason := _endless(interval, checkpoint_seconds, mean, restart_seconds):
        return SpotRun(None, None, reason)
    whole, rest = divmod(work_seconds, interval)
    # What is left by rounding alone is no piece of its own.
    pieces = [interval] * int(whole) + ([rest] if rest > 1e-9 * work_seconds else [])
    tries = math.fsum(math.expm1((piece + checkpoint_seconds) / mean) for piece in pieces)
    paid = mean * math.exp(restart_seconds / mean) * tries
    return SpotRun(paid / mean, paid)


def _endless(interval: float, checkpoint: float, mean: float, restart: float) -> str | None:
    for name, value in (("to save", checkpoint), ("to restart", restart)):
        if value >= mean:
            return f"{value:g} s {name} are too long where machines are taken away every {mean:g} s on average"
    if (interval + checkpoint + restart) / mean > _LARGEST_EXPONENT:
        return f"a save every {interval:g} s of work is too seldom for a preemption every {mean:g} s on average"
    return None


def checkpoints_at_once(saves: int, limit: int | None, *, keeps_best: bool, there: int = 0) -> int:
    """Checkpoints of the rest of a run that are on the disk together, at the most. The Trainer deletes an old one after
    the new one is written: one above ``save_total_limit``, two with the best. ``there``: those of the run that is
    resumed."""
    most = saves if limit is None or limit < 1 else min(saves, limit + 1 + keeps_best)
    return max(0, most - there)
