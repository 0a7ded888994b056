"""The keys in which the recipes of several runs differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hf_efficient.recipe.resolved import ResolvedRecipe

__all__ = ["DifferingKey", "differing_keys"]


@dataclass(frozen=True)
class DifferingKey:
    """One key.

    Attributes:
        key: dotted.
        values: recipe by recipe, as YAML on one line; None where a recipe has no such key.
    """

    key: str
    values: list[str | None]


def differing_keys(recipes: Sequence[ResolvedRecipe]) -> list[DifferingKey]:
    """Keys whose values are not all alike, in the order of the first recipe that has them."""
    held = [{value.key: value.value for value in recipe.values} for recipe in recipes]
    found = []
    for key in dict.fromkeys(key for each in held for key in each):
        values = [each.get(key) for each in held]
        if any(value != values[0] for value in values):
            found.append(DifferingKey(key, values))
    return found
