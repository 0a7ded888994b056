"""Whether a value of a recipe was set, and where."""

from __future__ import annotations

from hf_efficient.recipe.schema import Recipe

__all__ = ["is_set", "told_where"]


def is_set(recipe: Recipe, key: str) -> bool:
    """Whether somebody set the value; one that has its default in a changed recipe is given there, and not set.

    Args:
        recipe: from ``load_recipe``, or built in Python.
        key: dotted, of a section's own field.
    """
    origin = recipe.provenance.get(key)
    if origin is not None:
        return origin.is_set
    section, _, name = key.partition(".")
    return name in getattr(recipe, section).model_fields_set


def told_where(recipe: Recipe, key: str) -> str:
    """``FILE:LINE: ``, or the flag; empty where nobody set the value.

    Args:
        recipe: the recipe.
        key: dotted.
    """
    origin = recipe.provenance.get(key)
    return f"{origin}: " if origin is not None and origin.is_set else ""
