"""A rehearsed training as what it asks of a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hf_efficient.planning.gpu import Demand
from hf_efficient.planning.rehearsal import Rehearsal
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records import OperatorWork

__all__ = ["demand_of", "steps_of"]


def demand_of(recipe: Recipe, rehearsal: Rehearsal) -> Demand:
    """Its allocations and operators, the tokens of a step and the steps of the run."""
    return Demand(
        events=rehearsal.log.events,
        first_step=rehearsal.first_step,
        operators=_in_half_precision(rehearsal.operators) if recipe.train.get("fp16") else rehearsal.operators,
        tokens=rehearsal.rows * rehearsal.length * rehearsal.micro_batches,
        steps=steps_of(recipe),
    )


def _in_half_precision(operators: Sequence[OperatorWork]) -> list[OperatorWork]:
    """A rehearsal with bfloat16 in place of float16, as the run computes it."""
    return [dataclasses.replace(one, dtype="fp16") if one.dtype == "bf16" else one for one in operators]


def steps_of(recipe: Recipe) -> int | None:
    """Optimizer steps of the run; None where they depend on the data."""
    steps = int(recipe.train.get("max_steps") or -1)
    return steps if steps > 0 else None
