"""Rows of a recipe's micro-batch."""

from __future__ import annotations

from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_fields import train_fields

__all__ = ["micro_batch_rows"]


def micro_batch_rows(recipe: Recipe) -> int:
    """On one device: what the recipe says, else the default of its configuration class."""
    name = "per_device_train_batch_size"
    return int(recipe.train.get(name, train_fields(recipe.method)[name].default))
