"""What a variant is: a recipe with one thing changed, and what is measured of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.isolation import VariantMeasurement

__all__ = ["Setup", "Variant", "always", "nothing"]


@dataclass(frozen=True)
class Setup:
    """What a process is given to measure a variant.

    Attributes:
        recipe: the variant's, short and writing to a folder of its own.
        original: the user's, writing to the same folder.
        steps: to be measured.
        warm_up: steps before them.
        share: of so many processes, whose batches are shared out, this one stands for the first; 1: for itself.
    """

    recipe: Recipe
    original: Recipe
    steps: int
    warm_up: int
    share: int = 1


def nothing(recipe: Recipe) -> dict[str, Any]:
    """No change."""
    return {}


def always(recipe: Recipe) -> str:
    """It applies to every recipe."""
    return ""


@dataclass(frozen=True)
class Variant:
    """One variant.

    Attributes:
        name: ``held_batches``.
        what: in words, for tables.
        measure: runs in a process of its own, in each rank where there are several.
        changes: of the recipe, by dotted key, beside those that all variants have in common.
        left_out: why it does not apply to a recipe; empty where it does.
        one_process: one process measures it, whatever the recipe says.
    """

    name: str
    what: str
    measure: Callable[[Setup], VariantMeasurement]
    changes: Callable[[Recipe], dict[str, Any]] = nothing
    left_out: Callable[[Recipe], str] = always
    one_process: bool = False
