"""One process where the recipe has several, with as many threads as each of these."""

from __future__ import annotations

from hf_efficient.isolate.changes import ALONE
from hf_efficient.isolate.variant import Variant
from hf_efficient.isolate.variants.held_batches import HELD_BATCHES
from hf_efficient.recipe.schema import Recipe

__all__ = ["ONE_PROCESS"]


def _left_out(recipe: Recipe) -> str:
    return "the recipe trains in one process" if recipe.distributed.processes == 1 else ""


ONE_PROCESS = Variant(
    "one_process",
    "one process, batches made beforehand",
    HELD_BATCHES.measure,
    lambda recipe: ALONE,
    _left_out,
    one_process=True,
)
