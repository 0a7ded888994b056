"""What accelerators cost for an hour, as providers listed it on a day (``facts/prices.yaml``)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

from hf_efficient.errors import SetupError
from hf_efficient.hardware.accelerators import accelerator
from hf_efficient.hardware.tables import plain, rows, unknown

__all__ = ["Market", "Price", "price", "prices", "providers"]

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


@functools.lru_cache(maxsize=1)
def prices() -> tuple[Price, ...]:
    """All that are known, in the order of the file."""
    return tuple(Price(**{**row, "date": str(row["date"])}) for row in rows("prices"))


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
    offers = [offer for offer in by_provider if offer.accelerator == name and offer.market == market]
    if not offers:
        held = sorted({f"{offer.accelerator} ({offer.market})" for offer in by_provider})
        raise SetupError(f"{provider} has no known {market} price for {name}; known: {', '.join(held)}. {_REMEDY}")
    fitting = [offer for offer in offers if offer.gpus <= gpus]
    return max(fitting, key=lambda one: one.gpus) if fitting else min(offers, key=lambda one: one.gpus)
