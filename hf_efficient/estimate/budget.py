"""Limits of what a run may spend, all counted in seconds at the rate at which it spends."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from hf_efficient.estimate.energy import JOULES_PER_KWH

LimitName = Literal["usd", "hours", "kwh"]
_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Spent:
    """What the processes of a run have spent, each from its start; None where it is not known.

    Attributes:
        wall_seconds: time.
        usd: that time at the price of what the run occupies.
        kwh: energy.
    """

    wall_seconds: float
    usd: float | None = None
    kwh: float | None = None

    def of(self, limit: LimitName) -> float | None:
        """In the unit of this limit."""
        return self.wall_seconds / _SECONDS_PER_HOUR if limit == "hours" else getattr(self, limit)


@dataclass(frozen=True)
class Limits:
    """What a run may spend; None: no limit.

    Attributes:
        usd: money.
        hours: wall time of its processes.
        kwh: energy.
    """

    usd: float | None = None
    hours: float | None = None
    kwh: float | None = None

    def __post_init__(self) -> None:
        """Check.

        Raises:
            ValueError: there is no limit, or one is not a positive number.
        """
        if not self.given():
            raise ValueError("a budget without a limit; give usd, hours or kwh")
        for name, value in self.given().items():
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"a budget of {value} {name}; write a positive number")

    def given(self) -> dict[LimitName, float]:
        """The limits that there are."""
        found: dict[LimitName, float] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, int | float):
                    raise ValueError(f"a budget of {value!r} {one.name}; write a positive number")
                found[one.name] = float(value)  # type: ignore[index]
        return found


@dataclass(frozen=True)
class Clearance:
    """The limit that comes first.

    Attributes:
        limit: which.
        seconds: until it is reached; negative where it has been passed.
    """

    limit: LimitName
    seconds: float


def clearance(
    limits: Limits, spent: Spent, price_usd_per_hour: float | None = None, watts: float | None = None
) -> Clearance | None:
    """The limit that is reached first, and in how many seconds.

    ``hours * 3600 - wall``, ``(usd - spent) / price * 3600``, ``(kwh - spent) * 3.6e6 / watts``; the least of them.

    Hand-worked: 2 USD and 1 h, 0.50 USD and 1800 s spent at 1 USD an hour: 1.50 USD last 5400 s, the hour 1800 s: the
    hours, in 1800 s. At 4 USD an hour the money lasts 1350 s, and comes first.

    Args:
        limits: of the run.
        spent: so far.
        price_usd_per_hour: of what the run occupies.
        watts: its power.

    Returns:
        None where no limit can be told: what it counts, or how fast, is not known.
    """
    per_second = {
        "usd": (price_usd_per_hour or 0.0) / _SECONDS_PER_HOUR,
        "hours": 1 / _SECONDS_PER_HOUR,
        "kwh": (watts or 0.0) / JOULES_PER_KWH,
    }
    found = []
    for name, limit in limits.given().items():
        used, rate = spent.of(name), per_second[name]
        if used is not None and (rate > 0 or used >= limit):
            found.append(Clearance(name, (limit - used) / rate if rate > 0 else 0.0))
    return min(found, key=lambda one: one.seconds, default=None)
