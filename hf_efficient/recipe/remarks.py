"""Settings that contradict nothing, and do not do what they seem to."""

from collections.abc import Iterator

from hf_efficient.errors import ModelError
from hf_efficient.estimate.rounding import rounds_to_nearest, still_share
from hf_efficient.facts.models import find_model
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.rules.settings import Settings
from hf_efficient.recipe.schema import Recipe, mixed_precision, told_where
from hf_efficient.recipe.train_fields import train_fields
from hf_efficient.text import share


def recipe_remarks(recipe: Recipe) -> list[str]:
    settings = Settings(recipe, train_fields(recipe.objective))
    return [*_experimental(recipe), *_uncounted_steps(settings), *_rounded_updates(settings)]


def _experimental(recipe: Recipe) -> Iterator[str]:
    objective = OBJECTIVES[recipe.objective]
    if objective.is_experimental:
        trainer = objective.trainer.rpartition(".")[2]
        what = f"TRL's {trainer} is experimental: it may change or go in any release"
        yield f"{told_where(recipe, 'objective')}objective: {recipe.objective}: {what}."


def _uncounted_steps(settings: Settings) -> Iterator[str]:
    """``eval_steps`` and its like are read where the strategy is ``steps``."""
    recipe = settings.recipe
    for kind in ("eval", "save", "logging"):
        key, strategy = f"train.{kind}_steps", settings.train(f"{kind}_strategy")
        if settings.was_set(key) and recipe.train.get(f"{kind}_steps") is not None and strategy != "steps":
            why = f"has no effect, because train.{kind}_strategy is {strategy}"
            yield f"{told_where(recipe, key)}{key}: {why}. Write train.{kind}_strategy: steps, or remove it."


def _rounded_updates(settings: Settings) -> Iterator[str]:
    """All weights trained in bfloat16 with a rate at which most updates round to nothing (``estimate/rounding.py``)."""
    recipe, rate = settings.recipe, float(settings.train("learning_rate"))
    lost = still_share(rate)
    in_bfloat16 = _dtype(recipe) == "bfloat16" and not _keeps_float32_copy(recipe)
    rounds = rounds_to_nearest(str(settings.train("optim")), settings.train("optim_args"))
    if recipe.adapter.method == "full" and in_bfloat16 and rounds and rate and lost > 0.5:
        key = "model.dtype"
        what = (
            f"weights in bfloat16 lose about {share(lost)} of the updates at train.learning_rate {rate:g} to rounding"
        )
        yield (
            f"{told_where(recipe, key)}{key}: {what}. Write model.dtype: float32, or train.optim: adamw_torch_8bit "
            "with train.optim_args: bf16_stochastic_round=true (needs torchao)."
        )


def _keeps_float32_copy(recipe: Recipe) -> bool:
    """DeepSpeed steps on a float32 copy; accelerate stores what FSDP2 trains in float32 (``planning/ranks/shares``)."""
    strategy = recipe.distributed.strategy
    return strategy in ("zero1", "zero2") or (strategy in ("zero3", "fsdp2") and mixed_precision(recipe) != "no")


def _dtype(recipe: Recipe) -> str | None:
    """``model.dtype``; for ``auto`` that of the checkpoint, where the model's shape ships here."""
    if recipe.model.dtype != "auto":
        return recipe.model.dtype
    try:
        config = find_model(recipe.model.id).config
    except ModelError:
        return None
    dtype = config.get("dtype", config.get("torch_dtype"))
    return None if dtype is None else str(dtype)
