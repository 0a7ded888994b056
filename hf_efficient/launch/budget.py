"""The recipe's budget: told on the terminal, in the recipe's own words."""

from __future__ import annotations

import functools
from pathlib import Path

from hf_efficient.callbacks.budget import BudgetCallback
from hf_efficient.errors import OutputError
from hf_efficient.estimate.budget import Limits, Spent
from hf_efficient.estimate.energy import JOULES_PER_KWH
from hf_efficient.launch.listener import RunListener
from hf_efficient.measure.earlier import read_earlier
from hf_efficient.recipe.schema import Recipe
from hf_efficient.report.budget import BudgetWords

__all__ = ["check_budget_left", "recipe_budget"]

_words = functools.partial(
    BudgetWords,
    key="efficiency.budget.",
    steps_key="train.max_steps",
    go_on="the same command with `--resume efficiency.budget.{limit}={value}` goes on",
    meter="limit efficiency.budget.usd or hours instead",
)


def recipe_budget(recipe: Recipe, listener: RunListener) -> BudgetCallback | None:
    """The callback that keeps the recipe's budget; None where it has none."""
    limits = recipe.efficiency.budget
    if limits is None:
        return None
    return BudgetCallback(
        limits.usd, limits.hours, limits.kwh, words=_words, tell=lambda text: listener.stage("Budget", text)
    )


def check_budget_left(recipe: Recipe, directory: Path, price_usd_per_hour: float | None) -> None:
    """Refuse to go on with a run that has spent its budget, before a model is loaded for nothing.

    Args:
        recipe: of the run.
        directory: of its records.
        price_usd_per_hour: of this start; None where it is not known.

    Raises:
        OutputError: nothing is left.
    """
    budget = recipe.efficiency.budget
    if budget is None:
        return
    limits, earlier = Limits(budget.usd, budget.hours, budget.kwh), read_earlier(directory)
    kwh = None if earlier.joules is None else earlier.joules / JOULES_PER_KWH
    spent = Spent(earlier.wall_seconds, earlier.cost_at(price_usd_per_hour), kwh)
    for limit, value in limits.given().items():
        used = spent.of(limit)
        if used is not None and used >= value:
            raise OutputError(_words(limits).spent_before(limit, used))
