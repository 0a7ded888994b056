"""A loaded recipe as one file that stands alone: what was set, without what it extends and without the defaults."""

from __future__ import annotations

from typing import Any

from hf_efficient.recipe.nodes import KeyPath, dotted
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.yaml_dump import dump_yaml

__all__ = ["standalone_recipe"]

# What becomes of an earlier run is said by a job's own switches, at its first start and at later ones.
_LEFT_OUT = frozenset({"existing_output"})


def standalone_recipe(recipe: Recipe) -> str:
    """YAML that loads to the same recipe anywhere; a job carries it, so that a later change of a file changes no job.

    Args:
        recipe: resolved, with the overrides of the command line in it.
    """
    plain = {key: value for key, value in recipe.resolved().items() if key not in _LEFT_OUT}
    return dump_yaml(_set_values(plain, (), recipe))


def _set_values(value: Any, path: KeyPath, recipe: Recipe) -> Any:
    """The part below a path that somebody set; None where it is all defaults."""
    if isinstance(value, dict) and value:
        kept = {key: _set_values(below, (*path, key), recipe) for key, below in value.items()}
        return {key: below for key, below in kept.items() if below is not None or _is_set((*path, key), recipe)} or None
    if isinstance(value, list) and value:
        parts = [_set_values(below, (*path, index), recipe) for index, below in enumerate(value)]
        return parts if any(part is not None for part in parts) else None
    return value if _is_set(path, recipe) else None


def _is_set(path: KeyPath, recipe: Recipe) -> bool:
    origin = recipe.provenance.get(dotted(path))
    return origin is not None and origin.is_set
