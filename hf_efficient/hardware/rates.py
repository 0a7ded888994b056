"""What an hour of a run costs and how dirty its electricity is: what the user says, or what the tables say."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

from hf_efficient.errors import SetupError
from hf_efficient.hardware.accelerators import accelerator_of_device
from hf_efficient.hardware.grid import grid_intensity
from hf_efficient.hardware.prices import Market, Price, offers, price, providers
from hf_efficient.hardware.tables import plain, unknown

__all__ = ["Rates", "grid_facts", "price_facts"]

_REMEDY = "set efficiency.price_usd_per_hour in the recipe, or Rates(price_usd_per_hour=...)"


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
        return _unpriced(f"no price is known of a machine without a GPU{listed}; {_REMEDY}")
    if rates.price_from is not None:
        return _listed(rates.price_from, rates.market, device_name, gpus)
    known = accelerator_of_device(device_name)
    name = known.name if known is not None else device_name
    found = offers(name, rates.market)
    if not found:
        spot = "spot " if rates.market == "spot" else ""
        return _unpriced(f"no {spot}list price of {name} is known; {_REMEDY}")
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
