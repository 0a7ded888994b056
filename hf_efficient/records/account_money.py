"""The energy and the money of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["BudgetAccount", "EnergyAccount", "EnergyPart", "MoneyAccount"]


@dataclass(frozen=True)
class EnergyPart:
    """What one meter told.

    Attributes:
        name: ``GPU 0``, ``CPU package 0``, ``CPU``.
        joules: energy over ``covered_seconds``.
        source: ``nvml``, ``rapl``, or ``estimate``.
        estimated: nothing was measured.
        covered_seconds: time that ``joules`` is of.
        missing_seconds: the rest of the wall time of the processes that it was read in: before its first reading, since
            the meters are read from where the run knows its output directory, and where it did not tell.
        note: what it meters, or how an estimate was made.
    """

    name: str
    joules: float
    source: Literal["nvml", "rapl", "estimate"]
    estimated: bool
    covered_seconds: float
    missing_seconds: float
    note: str = ""


@dataclass(frozen=True)
class EnergyAccount:
    """Energy of the run's machines, all of its processes and ranks: what the meters told, without cooling.

    Attributes:
        joules: sum of the parts; None where there is no part.
        estimated: whether any part is an estimate.
        parts: meter by meter.
        phase_joules: the energy by phase of rank 0, ``unattributed`` included, shared out by the readings' times (see
            ``account/energy.py``); None where there is no part.
        co2e_grams: ``joules`` times the grid's intensity; None where there is no part.
        grid_grams_per_kwh, grid_source: that intensity, and where it comes from.
    """

    joules: float | None = None
    estimated: bool = False
    parts: list[EnergyPart] = field(default_factory=list)
    phase_joules: dict[str, float] | None = None
    co2e_grams: float | None = None
    grid_grams_per_kwh: float | None = None
    grid_source: str | None = None


@dataclass(frozen=True)
class BudgetAccount:
    """The limits of a run.

    Attributes:
        usd, hours, kwh: the limits; None where there is none.
        reached: in words, which limit ended the run; None where none did.
        reached_at_step: after which step.
    """

    usd: float | None = None
    hours: float | None = None
    kwh: float | None = None
    reached: str | None = None
    reached_at_step: int | None = None


@dataclass(frozen=True)
class MoneyAccount:
    """What the wall time of the run cost.

    Attributes:
        cost_usd: ``wall_seconds`` of each process at the price that it stated; None where that is unknown.
        usd_per_million_non_padding_tokens: of the whole cost.
        phase_usd: by phase, ``unattributed`` included: they sum up to ``cost_usd``.
        price_usd_per_hour: of everything that the run occupies, in its last process.
        lowest_price_usd_per_hour, highest_price_usd_per_hour: among all processes, where they had different ones; else
            None.
        price_source: where that of the last process comes from, with its date.
        estimated: whether nobody said what is paid, so that it is the median of list prices.
        budget: None where there is none.
    """

    cost_usd: float | None = None
    usd_per_million_non_padding_tokens: float | None = None
    phase_usd: dict[str, float] | None = None
    price_usd_per_hour: float | None = None
    price_source: str | None = None
    estimated: bool = False
    budget: BudgetAccount | None = None
    lowest_price_usd_per_hour: float | None = None
    highest_price_usd_per_hour: float | None = None
