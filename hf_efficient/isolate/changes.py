"""What all variants change: they are short, write to a folder of their own, and tell nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_efficient.recipe.global_batch import unnamed_batch
from hf_efficient.recipe.load import change_recipe
from hf_efficient.recipe.profile_section import ProfileSection
from hf_efficient.recipe.schema import Recipe

__all__ = ["ALONE", "BARE", "NO_LOGGING", "QUIET_STEPS", "in_folder", "varied"]

BARE: dict[str, Any] = {
    "efficiency.record_steps": False,
    "efficiency.check_gradients": False,
    "efficiency.log_metrics": False,
    **{f"efficiency.profile.{name}": value for name, value in ProfileSection().model_dump().items()},
}
"""Without our own instrumentation."""

NO_LOGGING: dict[str, Any] = {"train.logging_strategy": "no"}
"""Without logs."""

QUIET_STEPS: dict[str, Any] = {**BARE, **NO_LOGGING}
"""Steps and nothing else."""

ALONE: dict[str, Any] = {**QUIET_STEPS, "distributed.processes": 1, "distributed.strategy": "auto"}
"""The same in one process."""

_SHORT: dict[str, Any] = {
    "train.eval_strategy": "no",
    "train.save_strategy": "no",
    "train.report_to": "none",
    "train.disable_tqdm": True,
    "efficiency.plan": False,
}
_WATCH_EVALUATIONS = ("reduce_lr_on_plateau", "greedy")
_WHERE_SET: dict[str, Any] = {
    "train.eval_on_start": False,
    "train.load_best_model_at_end": False,
    "train.push_to_hub": False,
    "train.resume_from_checkpoint": None,
    "train.auto_find_batch_size": False,
}


def in_folder(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with another output directory, and without what would follow its training or end it early.

    Its variants, one process in place of several too, accumulate as often as it does.

    Args:
        recipe: the user's, as it trains here.
        folder: where a variant may write.

    Raises:
        RecipeError: never of a recipe that was loaded.
    """
    changes: dict[str, Any] = {"output_dir": str(folder), "existing_output": "refuse", **unnamed_batch(recipe)}
    if recipe.efficiency.budget is not None:
        changes["efficiency.budget"] = None
    return change_recipe(recipe, changes)


def varied(recipe: Recipe, steps: int, changes: dict[str, Any]) -> Recipe:
    """A variant of a recipe.

    Args:
        recipe: from ``in_folder``.
        steps: that it trains.
        changes: what is the variant's own.

    Raises:
        RecipeError: the recipe contradicts itself with the changes.
    """
    said = {key: value for key, value in _WHERE_SET.items() if key.removeprefix("train.") in recipe.train}
    if recipe.train.get("lr_scheduler_type") in _WATCH_EVALUATIONS:
        said |= {"train.lr_scheduler_type": "constant", "train.lr_scheduler_kwargs": None}
    if recipe.evaluate.early_stopping is not None:
        said["evaluate.early_stopping"] = None
    return change_recipe(recipe, {**_SHORT, **said, "train.max_steps": steps, **changes})
