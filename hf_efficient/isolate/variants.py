"""What a variant is: a recipe with one thing changed, and what is measured of it.

What all variants change: they are short, write to a folder of their own, and tell nobody.

Rows of a recipe's micro-batch.

The recipe as it is, short; its evaluations and saves, which a few steps may not reach, are timed by ``pauses``.

No recording of ours, no log, no evaluation, no save: steps and nothing between them.

A log after every step, and nothing else between them: what a log takes, however rare it is.

Batches made before the first step: what model and optimizer take without waiting for data.

One process where the recipe has several, with as many threads as each of these.

The forward alone, its graph kept as for a backward, on batches made beforehand; one process.

The forward alone under ``torch.no_grad``: what it takes where nothing is kept for a backward.

The loader alone: the same batches as the training, and no training.

Tokenisation alone: the recipe's sources through the tokenizer, the cache bypassed.

Evaluations and saves by themselves: one after each of two steps.

Twice the rows in a micro-batch, recorded: with the recipe's own rows it gives the fixed cost of a micro-batch.

Half the rows in a micro-batch, recorded.

The variants: one file each, in the order in which they first run.

From ``as_is`` each of the chain leaves out one thing more, so that the difference of two neighbours is what that takes:

    as_is -> quiet -> held_batches -> one_process -> forward
          recording  data          other processes  backward and optimizer

The others measure one thing by itself. To add a variant: write a file with a ``Variant``, and name it in ``VARIANTS``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_efficient.recipe.load import change_recipe
from hf_efficient.recipe.rules.distributed import unnamed_batch
from hf_efficient.recipe.schema import ProfileSection, Recipe
from hf_efficient.recipe.train_fields import train_fields
from hf_efficient.records.isolation import VariantMeasurement

if TYPE_CHECKING:
    from transformers import Trainer


@dataclass(frozen=True)
class Setup:
    """What a process is given to measure a variant.

    Attributes:
        recipe: the variant's, short and writing to a folder of its own.
        original: the user's, writing to the same folder.
        steps: to be measured.
        warm_up: steps before them.
        share: of so many processes, whose batches are shared out, this one stands for the first; 1: for itself.
    """

    recipe: Recipe
    original: Recipe
    steps: int
    warm_up: int
    share: int = 1


def nothing(recipe: Recipe) -> dict[str, Any]:
    """No change."""
    return {}


def always(recipe: Recipe) -> str:
    """It applies to every recipe."""
    return ""


@dataclass(frozen=True)
class Variant:
    """One variant.

    Attributes:
        name: ``held_batches``.
        what: in words, for tables.
        measure: runs in a process of its own, in each rank where there are several.
        changes: of the recipe, by dotted key, beside those that all variants have in common.
        left_out: why it does not apply to a recipe; empty where it does.
        one_process: one process measures it, whatever the recipe says.
    """

    name: str
    what: str
    measure: Callable[[Setup], VariantMeasurement]
    changes: Callable[[Recipe], dict[str, Any]] = nothing
    left_out: Callable[[Recipe], str] = always
    one_process: bool = False


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


def micro_batch_rows(recipe: Recipe) -> int:
    """On one device: what the recipe says, else the default of its configuration class."""
    name = "per_device_train_batch_size"
    return int(recipe.train.get(name, train_fields(recipe.method)[name].default))


def _measure(setup: Setup) -> VariantMeasurement:
    from hf_efficient.isolate.measuring import recipe_schedule, recorded_training

    found, trainer = recorded_training(setup)
    return dataclasses.replace(found, schedule=recipe_schedule(setup.original, trainer))


AS_IS = Variant("as_is", "as it is, without evaluations and saves", _measure)


def _quiet_measure(setup: Setup) -> VariantMeasurement:
    from hf_efficient.isolate.measuring import timed_training

    return timed_training(setup)


QUIET = Variant("quiet", "no recording, logging, evaluation, saving", _quiet_measure, lambda recipe: QUIET_STEPS)


_EVERY_STEP: dict[str, Any] = {**BARE, "train.logging_strategy": "steps", "train.logging_steps": 1}


def _left_out(recipe: Recipe) -> str:
    return "the recipe logs nothing" if recipe.train.get("logging_strategy") in ("no", False) else ""


def _logged_measure(setup: Setup) -> VariantMeasurement:
    from hf_efficient.isolate.measuring import timed_training

    return timed_training(setup)


LOGGED = Variant("logged", "a log after every step", _logged_measure, lambda recipe: _EVERY_STEP, _left_out)


def _held_batches_measure(setup: Setup) -> VariantMeasurement:
    from hf_efficient.isolate.measuring import hold_batches, timed_training

    def hold(trainer: Trainer) -> None:
        hold_batches(trainer, setup.warm_up + setup.steps, setup.share)

    return timed_training(setup, hold)


HELD_BATCHES = Variant("held_batches", "batches made beforehand", _held_batches_measure, lambda recipe: QUIET_STEPS)


def _one_process_left_out(recipe: Recipe) -> str:
    return "the recipe trains in one process" if recipe.distributed.processes == 1 else ""


ONE_PROCESS = Variant(
    "one_process",
    "one process, batches made beforehand",
    HELD_BATCHES.measure,
    lambda recipe: ALONE,
    _one_process_left_out,
    one_process=True,
)


def _forward_measure(setup: Setup) -> VariantMeasurement:
    from hf_efficient.isolate.measuring import forward_training

    return forward_training(setup, with_graph=True)


FORWARD = Variant("forward", "forward only, with its graph", _forward_measure, lambda recipe: ALONE, one_process=True)


def _forward_no_grad_measure(setup: Setup) -> VariantMeasurement:
    from hf_efficient.isolate.measuring import forward_training

    return forward_training(setup, with_graph=False)


FORWARD_NO_GRAD = Variant(
    "forward_no_grad", "forward only, torch.no_grad", _forward_no_grad_measure, lambda recipe: ALONE, one_process=True
)


def _loader_measure(setup: Setup) -> VariantMeasurement:
    from hf_efficient.isolate.measuring import loader_alone

    return loader_alone(setup)


LOADER = Variant("loader", "the loader alone", _loader_measure, lambda recipe: QUIET_STEPS)


MOST_EXAMPLES = 2000
"""Of a larger source a drawn part, which gives the same rate."""


def _changes(recipe: Recipe) -> dict[str, Any]:
    few = min(recipe.data.max_train_examples or MOST_EXAMPLES, MOST_EXAMPLES)
    return {
        **ALONE,
        "data.max_train_examples": few,
        "data.eval": [],
        "data.eval_fraction": None,
        "evaluate.metrics": [],
    }


def _tokenisation_measure(setup: Setup) -> VariantMeasurement:
    from hf_efficient.isolate.measuring import tokenisation_alone

    return tokenisation_alone(setup)


TOKENISATION = Variant("tokenisation", "tokenisation alone", _tokenisation_measure, _changes, one_process=True)


_STEPS = 2


def _evaluates(recipe: Recipe) -> bool:
    has_data = bool(recipe.data.eval) or recipe.data.eval_fraction is not None
    return has_data and recipe.train.get("eval_strategy", "no") not in ("no", False)


def _saves(recipe: Recipe) -> bool:
    return recipe.train.get("save_strategy", "steps") not in ("no", False)


def _pauses_changes(recipe: Recipe) -> dict[str, Any]:
    changes: dict[str, Any] = {**QUIET_STEPS, "train.max_steps": _STEPS}
    if _evaluates(recipe):
        changes |= {"train.eval_strategy": "steps", "train.eval_steps": 1, "train.eval_delay": 0}
    if _saves(recipe):
        changes |= {"train.save_strategy": "steps", "train.save_steps": 1}
    return changes


def _pauses_left_out(recipe: Recipe) -> str:
    return "" if _evaluates(recipe) or _saves(recipe) else "the recipe neither evaluates nor saves while it trains"


def _pauses_measure(setup: Setup) -> VariantMeasurement:
    from hf_efficient.isolate.measuring import timed_pauses

    return timed_pauses(setup)


PAUSES = Variant("pauses", "evaluations and saves, timed", _pauses_measure, _pauses_changes, _pauses_left_out)


def _micro_batch_doubled_changes(recipe: Recipe) -> dict[str, Any]:

    return {**NO_LOGGING, "train.per_device_train_batch_size": 2 * micro_batch_rows(recipe)}


def _micro_batch_doubled_measure(setup: Setup) -> VariantMeasurement:
    from hf_efficient.isolate.measuring import recorded_training

    return recorded_training(setup)[0]


MICRO_BATCH_DOUBLED = Variant(
    "micro_batch_doubled", "twice the rows in a micro-batch", _micro_batch_doubled_measure, _micro_batch_doubled_changes
)


def _micro_batch_halved_changes(recipe: Recipe) -> dict[str, Any]:

    return {**NO_LOGGING, "train.per_device_train_batch_size": micro_batch_rows(recipe) // 2}


def _micro_batch_halved_left_out(recipe: Recipe) -> str:

    return "a micro-batch has one row" if micro_batch_rows(recipe) < 2 else ""


MICRO_BATCH_HALVED = Variant(
    "micro_batch_halved",
    "half the rows in a micro-batch",
    MICRO_BATCH_DOUBLED.measure,
    _micro_batch_halved_changes,
    _micro_batch_halved_left_out,
)


VARIANTS: tuple[Variant, ...] = (
    AS_IS,
    QUIET,
    LOGGED,
    HELD_BATCHES,
    ONE_PROCESS,
    FORWARD,
    FORWARD_NO_GRAD,
    LOADER,
    TOKENISATION,
    PAUSES,
    MICRO_BATCH_HALVED,
    MICRO_BATCH_DOUBLED,
)
