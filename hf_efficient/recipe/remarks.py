"""Settings of a valid recipe that have no effect, in words: no mistake, but perhaps not what was meant."""

from __future__ import annotations

from collections.abc import Iterator

from hf_efficient.recipe.origins import told_where
from hf_efficient.recipe.rules import Settings
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_fields import train_fields

__all__ = ["recipe_remarks"]

_KINDS = ("eval", "save", "logging")


def recipe_remarks(recipe: Recipe) -> list[str]:
    """A line for each of them, with where it was set; empty where there is none."""
    return list(_steps_without_strategy(Settings(recipe, train_fields(recipe.method))))


def _steps_without_strategy(settings: Settings) -> Iterator[str]:
    """``eval_steps`` and its like are read where the strategy is ``steps``."""
    for kind in _KINDS:
        key, strategy = f"train.{kind}_steps", settings.train(f"{kind}_strategy")
        if settings.was_set(key) and settings.recipe.train.get(f"{kind}_steps") is not None and strategy != "steps":
            yield (
                f"{told_where(settings.recipe, key)}{key}: has no effect, because train.{kind}_strategy is {strategy}. "
                f"Write train.{kind}_strategy: steps, or remove it."
            )
