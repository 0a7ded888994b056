"""The recipe of a proof: the run's own, two steps long, in a folder of its own, telling nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_efficient.recipe.global_batch import unnamed_batch
from hf_efficient.recipe.load import change_recipe
from hf_efficient.recipe.profile_section import ProfileSection
from hf_efficient.recipe.schema import Recipe

__all__ = ["MOST_MICRO_BATCHES", "STEPS", "preflight_folder", "proof_recipe"]

STEPS = 2
"""One before the save, and the next, which the optimizer's state makes larger and which a resumed run must repeat."""

MOST_MICRO_BATCHES = 2
"""Of a step: from the second on each finds the gradients of those before it, and is as large as any that follows."""

_FOLDER = ".preflight"

_SHORT: dict[str, Any] = {
    "train.max_steps": STEPS,
    "train.eval_strategy": "no",
    "train.save_strategy": "no",
    "train.logging_strategy": "no",
    "train.report_to": "none",
    "train.disable_tqdm": True,
    "train.train_sampling_strategy": "sequential",
    # A step of learning rate 0, where a warm-up begins, would change nothing that could be compared.
    "train.lr_scheduler_type": "constant",
    "train.warmup_steps": 0,
    "efficiency.plan": False,
    "efficiency.record_steps": False,
    "efficiency.log_metrics": False,
    **{f"efficiency.profile.{name}": value for name, value in ProfileSection().model_dump().items()},
}
_WHERE_SET: dict[str, Any] = {
    "eval_on_start": False,
    "load_best_model_at_end": False,
    "push_to_hub": False,
    "resume_from_checkpoint": None,
    "lr_scheduler_kwargs": None,
    "warmup_ratio": None,
    "logging_first_step": False,
}


def preflight_folder(recipe: Recipe) -> Path:
    """Where a proof writes: in the output directory, hence on the disk of the run; it is removed afterwards."""
    return Path(recipe.output_dir).expanduser() / _FOLDER


def proof_recipe(recipe: Recipe, micro_batches: int) -> Recipe:
    """The recipe of a proof.

    Args:
        recipe: of the run.
        micro_batches: of an optimizer step of the run.

    Raises:
        RecipeError: never of a recipe that was loaded.
    """
    said: dict[str, Any] = {
        f"train.{name}": value for name, value in _WHERE_SET.items() if recipe.train.get(name) is not None
    }
    if recipe.efficiency.budget is not None:
        said["efficiency.budget"] = None
    if recipe.evaluate.early_stopping is not None:
        said["evaluate.early_stopping"] = None
    return change_recipe(
        recipe,
        {
            **_SHORT,
            **said,
            **unnamed_batch(recipe),
            "train.gradient_accumulation_steps": min(micro_batches, MOST_MICRO_BATCHES),
            "output_dir": str(preflight_folder(recipe) / "run"),
            "existing_output": "refuse",
        },
    )
