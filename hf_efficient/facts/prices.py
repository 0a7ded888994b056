"""What accelerators cost for an hour, what a run therefore costs, and spot machines; what electricity emits by country,
and what a CPU draws where nothing measures it."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from hf_efficient.errors import SetupError
from hf_efficient.facts.tables import (
    accelerator,
    accelerator_of_device,
    own_facts_folder,
    own_rows,
    plain,
    rows,
    unknown,
)
from hf_efficient.text import counted

if TYPE_CHECKING:
    import torch

Market = Literal["on_demand", "spot"]


@dataclass(frozen=True)
class Price:
    """One offer: for one GPU and its share of an instance of ``gpus``, before tax, as the provider's page states it.
    ``spot`` machines may be taken away; ``own``: the user wrote it."""

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
    def label(self) -> str:
        dated = f", {self.date}" if self.date else ""
        return f"your own prices: {self.provider}{dated}" if self.own else f"{self.provider}{dated}"


def prices() -> tuple[Price, ...]:
    """The user's own, then those of the file. Raises ``SetupError``: the user's own are wrong."""
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
    """What an accelerator costs, by its name in ``accelerators()``; the user's own prices alone where there are any."""
    found = [offer for offer in prices() if (offer.accelerator, offer.market) == (accelerator_name, market)]
    if provider is not None:
        found = [offer for offer in found if plain(offer.provider) == plain(provider)]
    return [offer for offer in found if offer.own] or found


def providers() -> tuple[str, ...]:
    return tuple(dict.fromkeys(offer.provider for offer in prices()))


@dataclass(frozen=True)
class Rates:
    """Price and grid of a run, as its user knows them.

    ``price_usd_per_hour``: of everything that the run occupies. ``price_from``: without it, the provider whose list
    price of this GPU is taken, times the GPUs; None: the median of all, an estimate. ``grid``: a country's name or
    code, ``world``, or grams of CO2e per kWh. Raises ``SetupError``: a figure is negative, both prices are given, or a
    provider or country is unknown."""

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
    """The price of everything that a run occupies, for its records; a price of None with its ``reason``.
    ``device_name`` is as torch spells it, None on a CPU. Raises ``SetupError``: ``price_from`` has no price of it."""
    remedy = "set cost.price_usd_per_hour in the recipe, or Rates(price_usd_per_hour=...)"
    if rates.price_usd_per_hour is not None:
        return _facts(float(rates.price_usd_per_hour), "set by the user")
    if device_name is None:
        listed = "" if rates.price_from is None else f", and {rates.price_from}'s prices are of GPUs"
        return {**_facts(None, None), "reason": f"no price is known of a machine without a GPU{listed}; {remedy}"}
    known = accelerator_of_device(device_name)
    if rates.price_from is not None:
        if known is None:
            raise SetupError(f"price_from: no list price of {device_name} is known. Write price_usd_per_hour instead.")
        return _listed(rates.price_from, rates.market, known.name, gpus)
    name = known.name if known is not None else device_name
    found = offers(name, rates.market)
    if not found:
        spot = "spot " if rates.market == "spot" else ""
        return {**_facts(None, None), "reason": f"no {spot}list price of {name} is known; {remedy}"}
    usd = statistics.median(offer.usd_per_gpu_hour for offer in found)
    return _facts(usd * gpus, _median_source(found, gpus), estimated=not found[0].own)


def rate_facts(rates: Rates, device: torch.device, gpus: int) -> dict[str, dict[str, Any]]:
    """The facts ``price`` and ``grid`` of a run whose process computes on this device, of so many GPUs in all. Raises
    ``SetupError``: the provider that the user names has no known price of this GPU."""
    name = None
    if device.type == "cuda":
        import torch

        name = torch.cuda.get_device_name(device)
    return {"price": price_facts(rates, name, gpus), "grid": grid_facts(rates)}


def grid_facts(rates: Rates) -> dict[str, Any]:
    held = grid_intensity(rates.grid)
    source = held.name if held.year is None else f"{held.name} {held.year}, {held.source}"
    return {"grams_per_kwh": held.grams_per_kwh, "source": source}


def _listed(provider: str, market: Market, name: str, gpus: int) -> dict[str, Any]:
    """Of the largest instance with at most ``gpus`` GPUs, or else the smallest: eight may be cheaper each than one."""
    found = offers(name, market, provider)
    if not found:
        known = (offer for offer in prices() if plain(offer.provider) == plain(provider))
        held = ", ".join(sorted({f"{offer.accelerator} ({offer.market})" for offer in known}))
        why = f"{provider} has no known {market} price for {name}; known: {held}"
        raise SetupError(f"price_from: {why}. Set cost.price_usd_per_hour to what you pay.")
    fitting = [offer for offer in found if offer.gpus <= gpus]
    offer = max(fitting, key=lambda one: one.gpus) if fitting else min(found, key=lambda one: one.gpus)
    rented = math.ceil(gpus / offer.gpus) * offer.gpus  # an instance is rented whole
    share = f"{gpus} of {rented} GPUs rented" if rented > gpus else counted(gpus, "GPU")
    whose = f"your own {offer.provider}" if offer.own else f"{offer.provider}'s"
    when = f" of {offer.date}" if offer.date else ""
    source = f"{whose} {_kind(offer)}{when}, ${offer.usd_per_gpu_hour:g} per GPU-hour of {offer.accelerator}, {share}"
    return _facts(offer.usd_per_gpu_hour * rented, source)


def _median_source(found: list[Price], gpus: int) -> str:
    first = found[0]
    dates = sorted({offer.date for offer in found if offer.date})
    when = "" if not dates else f" of {dates[0]}" if len(dates) == 1 else f" of {dates[0]} to {dates[-1]}"
    figures = [offer.usd_per_gpu_hour for offer in found]
    count, between = f"{'your own' if first.own else 'the one known'} {_kind(first)}", f" (${figures[0]:g})"
    if len(found) > 1:
        count = f"median of {'your own ' if first.own else ''}{len(found)} {_kind(first)}s"
        between = f" (${min(figures):g} to ${max(figures):g})"
    return f"{count} per GPU-hour of {first.accelerator}{between}{when}, {counted(gpus, 'GPU')}"


def _kind(offer: Price) -> str:
    return f"{offer.market.replace('_', '-')} {'price' if offer.own else 'list price'}"


def _facts(usd: float | None, source: str | None, *, estimated: bool = False) -> dict[str, Any]:
    return {"price_usd_per_hour": usd, "source": source, "estimated": estimated}


@dataclass(frozen=True)
class SpotTerms:
    """How spot machines behave. Hours are the mean, of a run on several machines until the first goes;
    ``restart_seconds``, paid, until the next step; MB are 10^6 bytes. ``assumed`` are values that the user did not say,
    with sources; ``write_of`` is their disk."""

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
    """What the user says, and for what is None the figure of ``data/spot.yaml``."""
    facts = {row["figure"]: row for row in rows("spot")}
    assumed: list[str] = []

    def chosen(said: float | None, figure: str, words: str) -> float:
        if said is not None:
            return said
        row = facts[figure]
        assumed.append(f"{words.format(row['value'])} ({row['of']})")
        return float(row["value"])

    return SpotTerms(
        chosen(hours_between_preemptions, "preemption", "a machine is taken away every {:g} h on average"),
        chosen(restart_seconds, "restart", "{:g} s until the next one trains"),
        chosen(write_mb_per_second, "write", "checkpoints are written at {:g} MB/s"),
        tuple(assumed),
        facts["write"]["of"] if write_mb_per_second is None else None,
    )


def failure_hours(stated: float | None, market: Market, preemption_hours: float | None = None) -> tuple[float, str]:
    """Hours between two failures of a run, and whose assumption that is; empty where the user said so."""
    found = stated or (preemption_hours if market == "spot" else None)
    if found is not None:
        return found, ""
    row = next(row for row in rows("spot") if row["figure"] == ("preemption" if market == "spot" else "failure"))
    return float(row["value"]), str(row["of"])


@dataclass(frozen=True)
class GridIntensity:
    """The mean of a country's electricity over a year, in grams of CO2e per kWh generated, over its life cycle.
    ``code`` is ISO 3166-1 alpha-2, ``world``, or ``user`` for a figure given by number, which has no year."""

    code: str
    name: str
    grams_per_kwh: float
    year: int | None
    source: str
    aliases: tuple[str, ...] = ()


@functools.lru_cache(maxsize=1)
def grid_intensities() -> tuple[GridIntensity, ...]:
    return msgspec.convert(rows("grid"), tuple[GridIntensity, ...])


def grid_intensity(region: str | float) -> GridIntensity:
    """The intensity of a region: ``FR``, ``France``, ``UK``, ``world``, or a number of gCO2e/kWh of the user's own.
    Raises ``SetupError``: no region has that name (names the nearest), or the number is negative or not finite."""
    if isinstance(region, (int, float)):
        if not (math.isfinite(region) and region >= 0):
            raise SetupError(f"A grid intensity of {region} gCO2e/kWh: write a number from 0, or a country.")
        return GridIntensity("user", "set by the user", float(region), None, "the user")
    for held in grid_intensities():
        if plain(region) in map(plain, (held.code, held.name, *held.aliases)):
            return held
    raise unknown("region", region, (held.name for held in grid_intensities()), "Or give the number of gCO2e/kWh.")


@dataclass(frozen=True)
class CpuPower:
    """Power of a server for each of its virtual CPUs (hardware threads): idle, and at full load."""

    min_watts: float
    max_watts: float
    source: str


def cpu_power() -> CpuPower:
    """The mean over the providers of ``data/cpu_power.yaml``: a machine does not say which of them it is like."""
    held = rows("cpu_power")
    providers = ", ".join(row["provider"] for row in held)
    return CpuPower(
        min_watts=statistics.fmean(row["min_watts"] for row in held),
        max_watts=statistics.fmean(row["max_watts"] for row in held),
        source=f"Cloud Carbon Footprint, mean of {providers}, read {max(str(row['date']) for row in held)}",
    )
