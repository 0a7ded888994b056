"""Greenhouse gases of electricity by country (``facts/grid.yaml``).

What a CPU draws where nothing measures it (``facts/cpu_power.yaml``).

What accelerators cost for an hour, as providers listed it on a day (``facts/prices.yaml``).

What an hour of a run costs and how dirty its electricity is: what the user says, or what the tables say.

What is taken for granted of machines that may be taken away at any time (``facts/spot.yaml``).
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hf_efficient.errors import SetupError
from hf_efficient.facts.accelerators import accelerator, accelerator_of_device
from hf_efficient.facts.own_facts import own_facts_folder, own_rows
from hf_efficient.facts.tables import plain, rows, unknown


@dataclass(frozen=True)
class GridIntensity:
    """The mean of a country's electricity over a year.

    Attributes:
        code: ISO 3166-1 alpha-2, ``world``, or ``user`` for a figure given by number.
        name: the country.
        grams_per_kwh: grams of CO2 equivalent per kilowatt-hour generated, over its life cycle.
        year: the year it holds for; None for a figure given by number.
        source: who states it.
        read_at: where it was read.
        date: the day it was read.
        aliases: other names that are understood.
    """

    code: str
    name: str
    grams_per_kwh: float
    year: int | None
    source: str
    read_at: str
    date: str | None
    aliases: tuple[str, ...] = ()


@functools.lru_cache(maxsize=1)
def grid_intensities() -> tuple[GridIntensity, ...]:
    """All that are known, in the order of the file."""
    return tuple(
        GridIntensity(
            **{
                **row,
                "grams_per_kwh": float(row["grams_per_kwh"]),
                "date": str(row["date"]),
                "aliases": tuple(row.get("aliases", ())),
            }
        )
        for row in rows("grid")
    )


def grid_intensity(region: str | float) -> GridIntensity:
    """The intensity of a region: ``FR``, ``France``, ``UK``, ``world``, or a number of gCO2e/kWh of the user's own.

    Raises:
        SetupError: no region has that name (names the nearest), or the number is negative or not finite.
    """
    if isinstance(region, (int, float)):
        if not (math.isfinite(region) and region >= 0):
            raise SetupError(f"A grid intensity of {region} gCO2e/kWh: write a number from 0, or a country.")
        return GridIntensity("user", "set by the user", float(region), None, "the user", "the user", None)
    for held in grid_intensities():
        if plain(region) in map(plain, (held.code, held.name, *held.aliases)):
            return held
    raise unknown("region", region, (held.name for held in grid_intensities()), "Or give the number of gCO2e/kWh.")


@dataclass(frozen=True)
class CpuPower:
    """Power of a server for each of its virtual CPUs (hardware threads).

    Attributes:
        min_watts: idle.
        max_watts: at full load.
        source: who states it, with the day it was read.
    """

    min_watts: float
    max_watts: float
    source: str


@functools.lru_cache(maxsize=1)
def cpu_power() -> CpuPower:
    """The mean over the providers of the table, since a machine does not tell which of them it is like."""
    held = rows("cpu_power")
    providers = ", ".join(row["provider"] for row in held)
    return CpuPower(
        min_watts=statistics.fmean(row["min_watts"] for row in held),
        max_watts=statistics.fmean(row["max_watts"] for row in held),
        source=f"Cloud Carbon Footprint, mean of {providers}, read {max(str(row['date']) for row in held)}",
    )


Market = Literal["on_demand", "spot"]

_REMEDY = "Set efficiency.price_usd_per_hour to what you pay."


@dataclass(frozen=True)
class Price:
    """One offer.

    Attributes:
        provider: who offers it.
        accelerator: the accelerator's name in ``accelerators()``.
        market: ``on_demand``, or ``spot``, which may be taken away.
        usd_per_gpu_hour: for one GPU and its share of the instance, before tax.
        gpus: GPUs of the instance.
        product: what the provider calls it.
        source: the provider's page.
        read_at: where its figure was read.
        date: the day it held.
        own: whether the user wrote it.
    """

    provider: str
    accelerator: str
    market: Market
    usd_per_gpu_hour: float
    gpus: int
    product: str
    source: str
    read_at: str
    date: str
    own: bool = False

    @property
    def told(self) -> str:
        """Whose it is and of when, in a few words."""
        dated = f", {self.date}" if self.date else ""
        return f"your own prices: {self.provider}{dated}" if self.own else f"{self.provider}{dated}"


def prices() -> tuple[Price, ...]:
    """All that are known: the user's own, then those of the file in its order.

    Raises:
        SetupError: the user's own facts are not as they must be, or a price is of an accelerator that is not known.
    """
    return _prices(own_facts_folder())


@functools.lru_cache(maxsize=8)
def _prices(own_folder: Path | None) -> tuple[Price, ...]:
    own = [_own_price(row, own_folder) for row in own_rows(own_folder, "prices")]
    return (*own, *(Price(**{**row, "date": str(row["date"])}) for row in rows("prices")))


def _own_price(row: Mapping[str, Any], folder: Path | None) -> Price:
    try:
        name = accelerator(row["accelerator"]).name
    except SetupError as error:
        raise SetupError(f"{folder}/prices.yaml: accelerator: {error}") from error
    return Price(**{**row, "accelerator": name, "date": str(row["date"])}, own=True)


def offers(accelerator_name: str, market: Market, provider: str | None = None) -> list[Price]:
    """What an accelerator costs; the user's own prices alone where there are some.

    Args:
        accelerator_name: its name in ``accelerators()``.
        market: on demand or spot.
        provider: whose; None: anybody's.
    """
    found = [
        offer
        for offer in prices()
        if offer.accelerator == accelerator_name
        and offer.market == market
        and (provider is None or plain(offer.provider) == plain(provider))
    ]
    return [offer for offer in found if offer.own] or found


def providers() -> tuple[str, ...]:
    """The providers that have an offer."""
    return tuple(dict.fromkeys(offer.provider for offer in prices()))


def price(provider: str, accelerator_name: str, *, market: Market = "on_demand", gpus: int = 1) -> Price:
    """A provider's offer of an accelerator.

    Where it offers instances of several sizes, the largest with at most ``gpus`` GPUs, or else the smallest that there
    is: eight of them may be cheaper each than one.

    Args:
        provider: one of ``providers()``.
        accelerator_name: a name or device name.
        market: on demand or spot.
        gpus: how many are rented.

    Raises:
        SetupError: the provider, the accelerator, or this provider's offer of it is not known; names the nearest.
    """
    by_provider = [offer for offer in prices() if plain(offer.provider) == plain(provider)]
    if not by_provider:
        raise unknown("provider", provider, providers(), _REMEDY)
    name = accelerator(accelerator_name).name
    found = offers(name, market, provider)
    if not found:
        held = sorted({f"{offer.accelerator} ({offer.market})" for offer in by_provider})
        raise SetupError(f"{provider} has no known {market} price for {name}; known: {', '.join(held)}. {_REMEDY}")
    fitting = [offer for offer in found if offer.gpus <= gpus]
    return max(fitting, key=lambda one: one.gpus) if fitting else min(found, key=lambda one: one.gpus)


_RATES_REMEDY = "set efficiency.price_usd_per_hour in the recipe, or Rates(price_usd_per_hour=...)"


@dataclass(frozen=True)
class Rates:
    """Price and grid of a run, as its user knows them.

    Attributes:
        price_usd_per_hour: of everything that the run occupies: all its machines and GPUs together; None: see below.
        price_from: a provider of the price table, whose list price of this GPU is taken, times the GPUs; None: the
            median of all list prices of this GPU, marked as an estimate, where the table has it.
        market: which list prices: ``on_demand`` or ``spot``.
        grid: where the electricity comes from: a country's name or code, ``world``, or grams of CO2e per kWh.

    Raises:
        SetupError: a figure is negative, both prices are given, or a provider or country is not in the tables; names
            the nearest.
    """

    price_usd_per_hour: float | None = None
    price_from: str | None = None
    market: Market = "on_demand"
    grid: str | float = "world"

    def __post_init__(self) -> None:
        usd = self.price_usd_per_hour
        if usd is not None and not (math.isfinite(usd) and usd >= 0):
            raise SetupError(f"price_usd_per_hour: is {usd}; write dollars per hour, from 0.")
        if usd is not None and self.price_from is not None:
            raise SetupError("price_from: is set, and so is price_usd_per_hour. Keep one of the two.")
        if self.price_from is not None and plain(self.price_from) not in map(plain, providers()):
            raise unknown("provider", self.price_from, providers(), "Or set price_usd_per_hour.")
        if self.market not in ("on_demand", "spot"):
            raise SetupError(f"market: is {self.market!r}; write on_demand or spot.")
        grid_intensity(self.grid)


def price_facts(rates: Rates, device_name: str | None, gpus: int) -> dict[str, Any]:
    """The price of everything that a run occupies, for its records.

    Args:
        rates: what the user says.
        device_name: of the GPU that the run computes on, as torch tells it; None on a CPU.
        gpus: how many of them.

    Returns:
        ``price_usd_per_hour``, ``source``, ``estimated``; or a price of None with ``reason``.

    Raises:
        SetupError: the provider that the user names has no known price of this GPU.
    """
    if rates.price_usd_per_hour is not None:
        return _priced(rates.price_usd_per_hour, "set by the user", estimated=False)
    if device_name is None:
        listed = "" if rates.price_from is None else f", and {rates.price_from}'s prices are of GPUs"
        return _unpriced(f"no price is known of a machine without a GPU{listed}; {_RATES_REMEDY}")
    if rates.price_from is not None:
        return _listed(rates.price_from, rates.market, device_name, gpus)
    known = accelerator_of_device(device_name)
    name = known.name if known is not None else device_name
    found = offers(name, rates.market)
    if not found:
        spot = "spot " if rates.market == "spot" else ""
        return _unpriced(f"no {spot}list price of {name} is known; {_RATES_REMEDY}")
    usd = statistics.median(offer.usd_per_gpu_hour for offer in found)
    return _priced(usd * gpus, _median_source(found, name, gpus), estimated=not found[0].own)


def grid_facts(rates: Rates) -> dict[str, Any]:
    """The intensity of the grid, for a run's records: ``grams_per_kwh`` and ``source``."""
    held = grid_intensity(rates.grid)
    source = held.name if held.year is None else f"{held.name} {held.year}, {held.source}"
    return {"grams_per_kwh": held.grams_per_kwh, "source": source}


def _listed(provider: str, market: Market, device_name: str, gpus: int) -> dict[str, Any]:
    if accelerator_of_device(device_name) is None:
        raise SetupError(f"price_from: no list price of {device_name} is known. Write price_usd_per_hour in its place.")
    try:
        offer = price(provider, device_name, market=market, gpus=gpus)
    except SetupError as error:
        raise SetupError(f"price_from: {error}") from error
    rented = math.ceil(gpus / offer.gpus) * offer.gpus  # an instance is rented whole
    share = f"{gpus} of {rented} GPUs rented" if rented > gpus else f"{gpus} {'GPU' if gpus == 1 else 'GPUs'}"
    source = (
        f"{_whose(offer)} {market.replace('_', '-')} {'price' if offer.own else 'list price'}{_when(offer)}, "
        f"${offer.usd_per_gpu_hour:g} per GPU-hour of {offer.accelerator}, {share}"
    )
    return _priced(offer.usd_per_gpu_hour * rented, source, estimated=False)


def _whose(offer: Price) -> str:
    return f"{offer.provider}'s" if not offer.own else f"your own {offer.provider}"


def _when(offer: Price) -> str:
    return f" of {offer.date}" if offer.date else ""


def _median_source(found: list[Price], name: str, gpus: int) -> str:
    dates = sorted({offer.date for offer in found if offer.date})
    when = "" if not dates else f" of {dates[0]}" if len(dates) == 1 else f" of {dates[0]} to {dates[-1]}"
    figures = [offer.usd_per_gpu_hour for offer in found]
    kind = f"{found[0].market.replace('_', '-')} {'price' if found[0].own else 'list price'}"
    if found[0].own:
        count = f"median of your own {len(found)} {kind}s" if len(found) > 1 else f"your own {kind}"
    else:
        count = f"median of {len(found)} {kind}s" if len(found) > 1 else f"the one known {kind}"
    between = f" (${min(figures):g} to ${max(figures):g})" if len(found) > 1 else f" (${figures[0]:g})"
    return f"{count} per GPU-hour of {name}{between}{when}, {gpus} {'GPU' if gpus == 1 else 'GPUs'}"


def _priced(usd: float, source: str, *, estimated: bool) -> dict[str, Any]:
    return {"price_usd_per_hour": float(usd), "source": source, "estimated": estimated}


def _unpriced(reason: str) -> dict[str, Any]:
    return {"price_usd_per_hour": None, "source": None, "estimated": False, "reason": reason}


@dataclass(frozen=True)
class SpotTerms:
    """How spot machines behave.

    Attributes:
        hours_between_preemptions: on average; of a run on several machines, of the first that goes.
        restart_seconds: from a machine's start to the next step of training; paid.
        write_mb_per_second: 10^6 bytes of a checkpoint per second.
        assumed: those of these that the user did not say, each with where it is from.
        write_of: the disk whose speed that of the checkpoints is; None where the user said it.
    """

    hours_between_preemptions: float
    restart_seconds: float
    write_mb_per_second: float
    assumed: tuple[str, ...] = ()
    write_of: str | None = None


def spot_terms(
    hours_between_preemptions: float | None = None,
    restart_seconds: float | None = None,
    write_mb_per_second: float | None = None,
) -> SpotTerms:
    """What the user says, and for what is None the table's figure."""
    facts = {row["figure"]: row for row in rows("spot")}
    assumed: list[str] = []

    def chosen(said: float | None, figure: str, told: str) -> float:
        if said is not None:
            return said
        row = facts[figure]
        assumed.append(f"{told.format(row['value'])} ({row['of']})")
        return float(row["value"])

    return SpotTerms(
        chosen(hours_between_preemptions, "preemption", "a machine is taken away every {:g} h on average"),
        chosen(restart_seconds, "restart", "{:g} s until the next one trains"),
        chosen(write_mb_per_second, "write", "checkpoints are written at {:g} MB/s"),
        tuple(assumed),
        facts["write"]["of"] if write_mb_per_second is None else None,
    )
