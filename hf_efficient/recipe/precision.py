"""The precision that a recipe trains in, as its training arguments will say themselves."""

from __future__ import annotations

from typing import Literal

from hf_efficient.recipe.schema import QuantizationSection, Recipe

__all__ = ["compute_dtype", "mixed_precision"]


def mixed_precision(recipe: Recipe) -> Literal["bf16", "fp16", "no"]:
    """What accelerate calls it: TRL trains in bf16 unless told otherwise."""
    if recipe.train.get("fp16"):
        return "fp16"
    return "no" if recipe.train.get("bf16") is False else "bf16"


def compute_dtype(section: QuantizationSection) -> Literal["bfloat16", "float16", "float32"]:
    """What 4-bit layers multiply in; ``auto`` that no machine has settled is bfloat16, as of most GPUs."""
    return "bfloat16" if section.compute_dtype == "auto" else section.compute_dtype
