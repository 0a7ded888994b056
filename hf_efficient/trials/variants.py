"""The variants of a recipe: the recipe with one thing changed, in the order in which they first run.

From ``as_is`` each of the chain leaves out one thing more, so that the difference of two neighbours is what that takes:

    as_is -> quiet -> held_batches -> one_process -> forward
          recording  data          other processes  backward and optimizer

The others measure one thing by itself. To add one: name it in ``VARIANTS``, and its measure in ``variant_runs.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hf_efficient.recipe.load import NO_INSTRUMENTS, change_recipe, in_a_folder, without_pauses
from hf_efficient.recipe.rules import Settings
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_fields import train_fields

MOST_EXAMPLES: Final = 2000  # that are tokenised: of a larger source a drawn part, which gives the same rate
_PAUSED_STEPS = 2

_RECORDING = ("record_steps", "check_gradients", "log_metrics")
_BARE: dict[str, Any] = {**{f"efficiency.{name}": False for name in _RECORDING}, **NO_INSTRUMENTS}
_LOGGED: dict[str, Any] = {**_BARE, "train.logging_strategy": "steps", "train.logging_steps": 1}
_NO_LOGGING: dict[str, Any] = {"train.logging_strategy": "no"}
_QUIET: dict[str, Any] = {**_BARE, **_NO_LOGGING}  # steps and nothing else
_ALONE: dict[str, Any] = {**_QUIET, "distributed.processes": 1, "distributed.strategy": "auto"}

_WATCH_EVALUATIONS = ("reduce_lr_on_plateau", "greedy")


@dataclass(frozen=True)
class Variant:
    name: str
    what: str  # in words, for tables
    changes: Callable[[Recipe], dict[str, Any]]  # by dotted key, beside those that all variants have in common
    one_process: bool = False  # whatever the recipe says

    def left_out(self, recipe: Recipe) -> str:
        """Why it does not apply to a recipe; empty where it does."""
        is_left_out, why = _LEFT_OUT.get(self.name, (lambda recipe: False, ""))
        return why if is_left_out(recipe) else ""


def evaluates(recipe: Recipe) -> bool:
    has_data = bool(recipe.data.eval) or recipe.data.eval_fraction is not None
    return has_data and recipe.train.get("eval_strategy", "no") not in ("no", False)


def saves(recipe: Recipe) -> bool:
    return recipe.train.get("save_strategy", "steps") not in ("no", False)


def _with_pauses(recipe: Recipe) -> dict[str, Any]:
    changes: dict[str, Any] = {**_QUIET, "train.max_steps": _PAUSED_STEPS}
    if evaluates(recipe):
        changes |= {"train.eval_strategy": "steps", "train.eval_steps": 1, "train.eval_delay": 0}
    if saves(recipe):
        changes |= {"train.save_strategy": "steps", "train.save_steps": 1}
    return changes


def _few_examples(recipe: Recipe) -> dict[str, Any]:
    return {
        **_ALONE,
        "data.max_train_examples": min(recipe.data.max_train_examples or MOST_EXAMPLES, MOST_EXAMPLES),
        "data.eval": [],
        "data.eval_fraction": None,
        "evaluate.metrics": [],
    }


def _rows(recipe: Recipe) -> int:
    return int(Settings(recipe, train_fields(recipe.objective)).train("per_device_train_batch_size"))


def _with_rows(recipe: Recipe, times: float) -> dict[str, Any]:
    return {**_NO_LOGGING, "train.per_device_train_batch_size": int(_rows(recipe) * times)}


_LEFT_OUT: dict[str, tuple[Callable[[Recipe], bool], str]] = {
    "logged": (lambda recipe: recipe.train.get("logging_strategy") in ("no", False), "the recipe logs nothing"),
    "one_process": (lambda recipe: recipe.distributed.processes == 1, "the recipe trains in one process"),
    "pauses": (
        lambda recipe: not (evaluates(recipe) or saves(recipe)),
        "the recipe neither evaluates nor saves while it trains",
    ),
    "micro_batch_halved": (lambda recipe: _rows(recipe) < 2, "a micro-batch has one row"),
}
"""When a variant does not apply to a recipe, and why."""

VARIANTS: tuple[Variant, ...] = (
    Variant("as_is", "as it is, without evaluations and saves", lambda recipe: {}),
    Variant("quiet", "no recording, logging, evaluation, saving", lambda recipe: _QUIET),
    Variant("logged", "a log after every step", lambda recipe: _LOGGED),
    Variant("held_batches", "batches made beforehand", lambda recipe: _QUIET),
    # with as many threads as each of several has
    Variant("one_process", "one process, batches made beforehand", lambda recipe: _ALONE, one_process=True),
    Variant("forward", "forward only, with its graph", lambda recipe: _ALONE, one_process=True),
    Variant("forward_no_grad", "forward only, torch.no_grad", lambda recipe: _ALONE, one_process=True),
    Variant("loader", "the loader alone", lambda recipe: _QUIET),
    Variant("tokenisation", "tokenisation alone", _few_examples, one_process=True),
    Variant("pauses", "evaluations and saves, timed", _with_pauses),
    Variant("micro_batch_halved", "half the rows in a micro-batch", lambda one: _with_rows(one, 0.5)),
    Variant("micro_batch_doubled", "twice the rows in a micro-batch", lambda one: _with_rows(one, 2)),
)


def in_folder(recipe: Recipe, folder: Path) -> Recipe:
    return change_recipe(recipe, in_a_folder(recipe, folder))


def varied(recipe: Recipe, variant: Variant, steps: int) -> Recipe:
    """A variant of a recipe from ``in_folder`` that trains so many steps."""
    changes = {**without_pauses(recipe), "train.max_steps": steps}
    if recipe.train.get("auto_find_batch_size"):
        changes["train.auto_find_batch_size"] = False
    if recipe.train.get("lr_scheduler_type") in _WATCH_EVALUATIONS:
        changes |= {"train.lr_scheduler_type": "constant", "train.lr_scheduler_kwargs": None}
    return change_recipe(recipe, {**changes, **variant.changes(recipe)})
