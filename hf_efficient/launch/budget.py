"""The recipe's budget: told on the terminal, in the recipe's own words."""

from __future__ import annotations

import functools
from pathlib import Path

from hf_efficient.callbacks.budget import BudgetCallback
from hf_efficient.errors import OutputError
from hf_efficient.estimate.budget import Limits, Spent
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


def check_budget_left(recipe: Recipe, directory: Path) -> None:
    """Refuse to go on with a run that has spent its hours, before a model is loaded for nothing.

    Money and energy are looked at when training begins, once their price and meter are known.

    Raises:
        OutputError: nothing is left.
    """
    budget = recipe.efficiency.budget
    if budget is None or budget.hours is None:
        return
    spent = Spent(read_earlier(directory).wall_seconds).of("hours")
    if spent is not None and spent >= budget.hours:
        raise OutputError(_words(Limits(hours=budget.hours)).spent_before("hours", spent))
