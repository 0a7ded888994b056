"""A log after every step, and nothing else between them: what a log takes, however rare it is."""

from __future__ import annotations

from typing import Any

from hf_efficient.isolate.changes import BARE
from hf_efficient.isolate.variant import Setup, Variant
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.isolation import VariantMeasurement

__all__ = ["LOGGED"]

_EVERY_STEP: dict[str, Any] = {**BARE, "train.logging_strategy": "steps", "train.logging_steps": 1}


def _left_out(recipe: Recipe) -> str:
    return "the recipe logs nothing" if recipe.train.get("logging_strategy") in ("no", False) else ""


def _measure(setup: Setup) -> VariantMeasurement:
    from hf_efficient.isolate.training import timed_training

    return timed_training(setup)


LOGGED = Variant("logged", "a log after every step", _measure, lambda recipe: _EVERY_STEP, _left_out)
