"""What accelerators cost for an hour, as providers listed it on a day (``facts/prices.yaml``)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hf_efficient.errors import SetupError
from hf_efficient.hardware.accelerators import accelerator
from hf_efficient.hardware.own_facts import own_facts_folder, own_rows
from hf_efficient.hardware.tables import plain, rows, unknown

__all__ = ["Market", "Price", "offers", "price", "prices", "providers"]

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
