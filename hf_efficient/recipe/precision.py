"""The precision that a recipe trains in, as its training arguments will say themselves."""

from __future__ import annotations

from typing import Literal

from hf_efficient.recipe.schema import Recipe

__all__ = ["mixed_precision"]


def mixed_precision(recipe: Recipe) -> Literal["bf16", "fp16", "no"]:
    """What accelerate calls it: TRL trains in bf16 unless told otherwise."""
    if recipe.train.get("fp16"):
        return "fp16"
    return "no" if recipe.train.get("bf16") is False else "bf16"
