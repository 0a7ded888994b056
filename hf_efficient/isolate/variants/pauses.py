"""Evaluations and saves by themselves: one after each of two steps."""

from __future__ import annotations

from typing import Any

from hf_efficient.isolate.changes import QUIET_STEPS
from hf_efficient.isolate.variant import Setup, Variant
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.isolation import VariantMeasurement

__all__ = ["PAUSES"]

_STEPS = 2


def _evaluates(recipe: Recipe) -> bool:
    has_data = bool(recipe.data.eval) or recipe.data.eval_fraction is not None
    return has_data and recipe.train.get("eval_strategy", "no") not in ("no", False)


def _saves(recipe: Recipe) -> bool:
    return recipe.train.get("save_strategy", "steps") not in ("no", False)


def _changes(recipe: Recipe) -> dict[str, Any]:
    changes: dict[str, Any] = {**QUIET_STEPS, "train.max_steps": _STEPS}
    if _evaluates(recipe):
        changes |= {"train.eval_strategy": "steps", "train.eval_steps": 1, "train.eval_delay": 0}
    if _saves(recipe):
        changes |= {"train.save_strategy": "steps", "train.save_steps": 1}
    return changes


def _left_out(recipe: Recipe) -> str:
    return "" if _evaluates(recipe) or _saves(recipe) else "the recipe neither evaluates nor saves while it trains"


def _measure(setup: Setup) -> VariantMeasurement:
    from hf_efficient.isolate.pausing import timed_pauses

    return timed_pauses(setup)


PAUSES = Variant("pauses", "evaluations and saves, timed", _measure, _changes, _left_out)
