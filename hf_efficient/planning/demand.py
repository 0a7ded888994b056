"""A rehearsed training as what it asks of a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hf_efficient.planning.gpu import Demand
from hf_efficient.planning.ranks.work import rank_operators
from hf_efficient.planning.rehearsed import Rehearsal
from hf_efficient.planning.run_shapes import RunShapes
from hf_efficient.planning.unread_data import unread_pauses
from hf_efficient.recipe.schema import Recipe, mixed_precision
from hf_efficient.records.device import OperatorWork


def demand_of(recipe: Recipe, rehearsal: Rehearsal, shapes: RunShapes | None = None, processes: int = 1) -> Demand:
    """Its allocations and operators on one rank, the tokens of a step of all ranks, and the steps of the run.

    A mean step and an evaluation take as long as their positions, in proportion to those that were rehearsed.

    Args:
        recipe: of the run.
        rehearsal: of its largest micro-batch.
        shapes: of the run; None where its data are not known: every row is as long as the rehearsed ones, and an
            evaluation has as many as ``data.max_eval_examples`` allows.
        processes: that share the positions of ``shapes``.
    """
    positions = rehearsal.rows * rehearsal.length * rehearsal.micro_batches
    rank = rehearsal.rank
    ranks = 1 if rank is None else rank.sharding.ranks
    events, first, operators = rehearsal.log.events, rehearsal.first_step, _as_run(recipe, rehearsal.operators)
    operators = rank_operators(operators, rank)
    bf16 = mixed_precision(recipe) == "bf16"
    if shapes is None:
        found = Demand(events, first, operators, positions * ranks, steps_of(recipe), rank=rank, bf16=bf16)
        return _with_pauses(found, recipe, rehearsal)
    evaluation = rehearsal.evaluation
    evaluated = 0 if evaluation is None else evaluation.positions * (2 if recipe.method == "dpo" else 1)
    return Demand(
        events=events,
        first_step=first,
        operators=operators,
        tokens=round(shapes.train.step_content * ranks / processes),
        steps=shapes.train.steps,
        step_share=shapes.train.step_tokens / processes / positions,
        evaluation=() if evaluation is None else _as_run(recipe, evaluation.operators),
        evaluation_batches=0.0 if evaluation is None else shapes.evaluated_positions / processes / evaluated,
        rank=rank,
        bf16=bf16,
        saves=shapes.saves,
    )


def _with_pauses(demand: Demand, recipe: Recipe, rehearsal: Rehearsal) -> Demand:
    """Evaluations and saves as the recipe alone tells them."""
    evaluation = rehearsal.evaluation
    if demand.steps is None:
        return dataclasses.replace(demand, evaluation_batches=0.0 if evaluation is None else None, saves=None)
    pauses = unread_pauses(recipe, demand.steps, evaluation, demand.ranks)
    return dataclasses.replace(
        demand,
        evaluation=() if evaluation is None else _as_run(recipe, evaluation.operators),
        evaluation_batches=pauses.evaluation_batches,
        saves=pauses.saves,
    )


def _as_run(recipe: Recipe, operators: Sequence[OperatorWork]) -> Sequence[OperatorWork]:
    """What was rehearsed with bfloat16 in place of float16, in the run's own dtype."""
    if not recipe.train.get("fp16"):
        return operators
    return [dataclasses.replace(one, dtype="fp16") if one.dtype == "bf16" else one for one in operators]


def steps_of(recipe: Recipe) -> int | None:
    """Optimizer steps of the run; None where they depend on the data."""
    steps = int(recipe.train.get("max_steps") or -1)
    return steps if steps > 0 else None
