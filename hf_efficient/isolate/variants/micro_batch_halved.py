"""Half the rows in a micro-batch, recorded."""

from __future__ import annotations

from typing import Any

from hf_efficient.isolate.changes import NO_LOGGING
from hf_efficient.isolate.variant import Variant
from hf_efficient.isolate.variants.micro_batch_doubled import MICRO_BATCH_DOUBLED
from hf_efficient.recipe.schema import Recipe

__all__ = ["MICRO_BATCH_HALVED"]


def _changes(recipe: Recipe) -> dict[str, Any]:
    from hf_efficient.isolate.rows import micro_batch_rows

    return {**NO_LOGGING, "train.per_device_train_batch_size": micro_batch_rows(recipe) // 2}


def _left_out(recipe: Recipe) -> str:
    from hf_efficient.isolate.rows import micro_batch_rows

    return "a micro-batch has one row" if micro_batch_rows(recipe) < 2 else ""


MICRO_BATCH_HALVED = Variant(
    "micro_batch_halved", "half the rows in a micro-batch", MICRO_BATCH_DOUBLED.measure, _changes, _left_out
)
