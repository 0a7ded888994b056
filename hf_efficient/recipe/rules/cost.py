"""Rates and budget that contradict each other, or name what is not known."""

from collections.abc import Iterable, Iterator

from hf_efficient.errors import SetupError
from hf_efficient.facts.energy import grid_intensities, grid_intensity
from hf_efficient.facts.prices import prices, providers
from hf_efficient.facts.tables import plain
from hf_efficient.recipe.rules.settings import Contradiction, Settings, rule
from hf_efficient.recipe.tree import any_of, nearest


@rule("cost.price_usd_per_hour", "cost.price_from")
def one_price(settings: Settings) -> Iterator[Contradiction]:
    """What the user pays, or a provider's list price."""
    section = settings.recipe.cost
    if section.price_usd_per_hour is not None and section.price_from is not None:
        message = "is set, and so is `cost.price_usd_per_hour`."
        yield "cost.price_from", message, "Keep one of the two; null takes an inherited value back."


@rule("cost.price_from", "cost.market")
def provider_is_known(settings: Settings) -> Iterator[Contradiction]:
    """The price table holds the provider, and an offer of it in this market."""
    section = settings.recipe.cost
    if section.price_from is None:
        return
    wanted = plain(section.price_from)
    if wanted not in map(plain, providers()):
        message = f"is {section.price_from}, which is no provider with known prices."
        otherwise = f"Write {any_of(providers())}; or `cost.price_usd_per_hour` in its place."
        yield "cost.price_from", message, _meant(section.price_from, providers(), otherwise)
    elif not any(plain(offer.provider) == wanted and offer.market == section.market for offer in prices()):
        message = f"is {section.market}, but no such price of {section.price_from} is known."
        remedy = "Write on_demand, or `cost.price_usd_per_hour` in place of `cost.price_from`."
        yield "cost.market", message, remedy


@rule("cost.grid")
def grid_is_known(settings: Settings) -> Iterator[Contradiction]:
    """The grid table holds the country."""
    grid = settings.recipe.cost.grid
    try:
        grid_intensity(grid)
    except SetupError:
        names = [name for held in grid_intensities() for name in (held.name, *held.aliases)]
        otherwise = "Write a country's English name or its ISO code, or a number of gCO2e/kWh."
        message = f"is {grid}, which is no country with a known grid."
        yield "cost.grid", message, _meant(str(grid), names, otherwise)


def _meant(name: str, known: Iterable[str], otherwise: str) -> str:
    close = nearest(name, known)
    return otherwise if close is None else f"Did you mean {close}?"


@rule("budget")
def budget_has_a_limit(settings: Settings) -> Iterator[Contradiction]:
    """``budget: {}``."""
    budget = settings.recipe.budget
    if budget is not None and budget.usd is None and budget.hours is None and budget.kwh is None:
        yield "budget", "has no limit.", "Write usd, hours or kwh, or remove it."
