"""What a recipe leaves to the configuration class."""

from __future__ import annotations

from typing import Any

from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_check import ELSEWHERE
from hf_efficient.recipe.train_fields import train_fields

__all__ = ["train_defaults"]


def train_defaults(recipe: Recipe) -> dict[str, Any]:
    """The defaults of the fields that ``train:`` does not set, by name in alphabetical order.

    Fields that are set elsewhere in a recipe, and those that YAML cannot write, are left out.
    """
    fields = train_fields(recipe.method)
    return {
        name: fields[name].default
        for name in sorted(fields)
        if name not in recipe.train and name not in ELSEWHERE and fields[name].kinds != ("null",)
    }
