"""Rates and budget that contradict each other, or name what is not known."""

from collections.abc import Iterator
from typing import Any

from hf_efficient.errors import SetupError
from hf_efficient.facts.prices import Rates
from hf_efficient.recipe.rules.settings import Contradiction, Settings, rule


@rule("cost")
def rates_are_known(settings: Settings) -> Iterator[Contradiction]:
    """One price, of a provider that the price table holds, and a country that the grid table holds."""
    section = settings.recipe.cost
    price = {"price_usd_per_hour": section.price_usd_per_hour, "price_from": section.price_from}
    given: dict[str, dict[str, Any]] = {"price_from": price, "grid": {"grid": section.grid}}
    for key, rates in given.items():
        try:
            Rates(**rates)
        except SetupError as error:
            yield f"cost.{key}", str(error).removeprefix(f"{key}: "), ""


@rule("budget")
def budget_has_a_limit(settings: Settings) -> Iterator[Contradiction]:
    budget = settings.recipe.budget
    if budget is not None and budget.usd is None and budget.hours is None and budget.kwh is None:
        yield "budget", "has no limit.", "Write usd, hours or kwh, or remove it."
