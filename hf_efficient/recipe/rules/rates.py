"""What a run costs and how dirty its electricity is: names that the tables do not hold."""

from __future__ import annotations

from hf_efficient.errors import SetupError
from hf_efficient.hardware.grid import grid_intensities, grid_intensity
from hf_efficient.hardware.prices import prices, providers
from hf_efficient.hardware.tables import plain
from hf_efficient.recipe.rules.settings import Contradiction, Settings, reads
from hf_efficient.recipe.words import any_of, nearest

__all__ = ["grid_is_known", "one_price", "provider_is_known"]


@reads("efficiency.price_usd_per_hour", "efficiency.price_from")
def one_price(settings: Settings) -> list[Contradiction]:
    """What the user pays, or a provider's list price."""
    section = settings.recipe.efficiency
    if section.price_usd_per_hour is None or section.price_from is None:
        return []
    message = "is set, and so is `efficiency.price_usd_per_hour`."
    return [("efficiency.price_from", message, "Keep one of the two; null takes an inherited value back.")]


@reads("efficiency.price_from", "efficiency.market")
def provider_is_known(settings: Settings) -> list[Contradiction]:
    """The price table holds the provider, and an offer of it in this market."""
    section = settings.recipe.efficiency
    if section.price_from is None:
        return []
    wanted = plain(section.price_from)
    if wanted not in map(plain, providers()):
        message = f"is {section.price_from}, which is no provider with known prices."
        return [("efficiency.price_from", message, _meant(section.price_from, providers()))]
    if not any(plain(offer.provider) == wanted and offer.market == section.market for offer in prices()):
        message = f"is {section.market}, but no such price of {section.price_from} is known."
        remedy = "Write on_demand, or `efficiency.price_usd_per_hour` in place of `efficiency.price_from`."
        return [("efficiency.market", message, remedy)]
    return []


@reads("efficiency.grid")
def grid_is_known(settings: Settings) -> list[Contradiction]:
    """The grid table holds the country."""
    grid = settings.recipe.efficiency.grid
    try:
        grid_intensity(grid)
    except SetupError:
        names = [name for held in grid_intensities() for name in (held.name, *held.aliases)]
        message = f"is {grid}, which is no country with a known grid."
        return [("efficiency.grid", message, _meant(str(grid), names, "or a number of gCO2e/kWh"))]
    return []


def _meant(name: str, known: tuple[str, ...] | list[str], otherwise: str = "") -> str:
    close = nearest(name, known)
    if close is not None:
        return f"Did you mean {close}?"
    if otherwise:
        return f"Write a country's English name or its ISO code, {otherwise}."
    return f"Write {any_of(known)}; or `efficiency.price_usd_per_hour` in its place."
