"""Twice the rows in a micro-batch, recorded: with the recipe's own rows it gives the fixed cost of a micro-batch."""

from __future__ import annotations

from typing import Any

from hf_efficient.isolate.changes import NO_LOGGING
from hf_efficient.isolate.variant import Setup, Variant
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.isolation import VariantMeasurement

__all__ = ["MICRO_BATCH_DOUBLED"]


def _changes(recipe: Recipe) -> dict[str, Any]:
    from hf_efficient.isolate.rows import micro_batch_rows

    return {**NO_LOGGING, "train.per_device_train_batch_size": 2 * micro_batch_rows(recipe)}


def _measure(setup: Setup) -> VariantMeasurement:
    from hf_efficient.isolate.recorded import recorded_training

    return recorded_training(setup)[0]


MICRO_BATCH_DOUBLED = Variant("micro_batch_doubled", "twice the rows in a micro-batch", _measure, _changes)
