"""How often gradients are accumulated, from ``distributed.global_batch_size``."""

from __future__ import annotations

from typing import Any

from hf_efficient.errors import Problem, RecipeError
from hf_efficient.recipe.origins import told_where
from hf_efficient.recipe.rules.batch import (
    ACCUMULATION,
    GLOBAL_BATCH,
    batch_fault,
    batch_product,
    names_accumulation,
    planned_processes,
)
from hf_efficient.recipe.rules.settings import Settings
from hf_efficient.recipe.schema import DERIVED, Origin, Recipe
from hf_efficient.recipe.train_fields import train_fields

__all__ = ["as_planned", "unnamed_batch", "with_accumulation"]


def with_accumulation(recipe: Recipe, processes: int, remark: str = "") -> Recipe:
    """The recipe with the accumulation that its global batch takes; as it is where it names none, or both.

    Args:
        recipe: the recipe.
        processes: that train, on all machines.
        remark: on their number, for whoever asks where the value comes from.

    Raises:
        RecipeError: they do not divide the global batch, or the accumulation that the recipe names is another.
    """
    if recipe.distributed.global_batch_size is None:
        return recipe
    settings = Settings(recipe, train_fields(recipe.method))
    fault = batch_fault(settings, processes)
    if fault is not None:
        key, message, remedy = fault
        where = told_where(recipe, key).removesuffix(": ") or str(recipe.path or recipe.name)
        raise RecipeError([Problem(where, key, message, remedy)])
    if names_accumulation(recipe):
        return recipe
    rows = int(settings.train("per_device_train_batch_size"))
    accumulated = recipe.distributed.global_batch_size // (rows * processes)
    derived = recipe.model_copy(update={"train": {**recipe.train, "gradient_accumulation_steps": accumulated}})
    text = f"{GLOBAL_BATCH} / ({batch_product(rows, processes, 'process')}{remark})"
    derived._provenance = {**recipe.provenance, ACCUMULATION: Origin(DERIVED, text=text)}
    return derived


def as_planned(recipe: Recipe) -> Recipe:
    """The same by the processes that the recipe itself tells; one on each machine where they are counted at the start.

    Raises:
        RecipeError: as above.
    """
    counted = "; `auto` counts at the start" if recipe.distributed.processes == "auto" else ""
    return with_accumulation(recipe, planned_processes(recipe), counted)


def unnamed_batch(recipe: Recipe) -> dict[str, Any]:
    """Values that keep how often a recipe accumulates, whatever else becomes of it; none where no batch is named."""
    if recipe.distributed.global_batch_size is None:
        return {}
    return {GLOBAL_BATCH: None, ACCUMULATION: int(recipe.train.get("gradient_accumulation_steps", 1))}
