"""Money: hours times price, per run, per phase, per million tokens.

A price of None is unknown and makes every figure None; a price of 0 is a machine that costs nothing more, and makes
them 0; a negative price is an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

_SECONDS_PER_HOUR = 3600.0
_MILLION = 1_000_000


def cost_usd(seconds: float, price_usd_per_hour: float | None, units: float = 1) -> float | None:
    """``seconds / 3600 * price * units``.

    Hand-worked: 5400 s at 2.40 USD per GPU-hour on 8 GPUs: 1.5 * 2.4 * 8 = 28.80 USD.

    Args:
        seconds: wall time.
        price_usd_per_hour: price of one unit for an hour; None where unknown.
        units: how many are paid for (GPUs where the price is per GPU-hour, 1 where it is for the whole machine).

    Raises:
        ValueError: a figure is negative or not finite.
    """
    for name, value in (("time", seconds), ("price", price_usd_per_hour), ("number of units", units)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise ValueError(f"a {name} of {value}")
    if price_usd_per_hour is None:
        return None
    return seconds / _SECONDS_PER_HOUR * price_usd_per_hour * units


def cost_per_million_tokens(cost: float | None, tokens: int | None) -> float | None:
    """``cost / tokens * 1,000,000``; None where either is unknown or no token was seen.

    Hand-worked: 28.80 USD for 96 million tokens: 0.30 USD.

    Args:
        cost: USD.
        tokens: non-padding tokens trained on.

    Raises:
        ValueError: a figure is negative.
    """
    if (cost is not None and cost < 0) or (tokens is not None and tokens < 0):
        raise ValueError(f"a cost of {cost} USD for {tokens} tokens")
    if cost is None or not tokens:
        return None
    return cost / tokens * _MILLION


def phase_costs(
    phase_seconds: Mapping[str, float], price_usd_per_hour: float | None, units: float = 1
) -> dict[str, float] | None:
    """What each phase cost: its seconds at the run's price; None where the price is unknown.

    All units are paid for while any of them is in a phase, so the seconds are wall seconds. They add up to the run's
    cost when the phases add up to its time.

    Hand-worked: forward 1800 s and evaluation 900 s at 4 USD: 2 USD and 1 USD.

    Raises:
        ValueError: as for ``cost_usd``.
    """
    if price_usd_per_hour is None:
        return None
    costs = {phase: cost_usd(seconds, price_usd_per_hour, units) for phase, seconds in phase_seconds.items()}
    return {phase: cost for phase, cost in costs.items() if cost is not None}
