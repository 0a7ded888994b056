"""A rehearsal of the largest batches that a run's data give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_efficient.planning.ranks.rank import rehearse_rank
from hf_efficient.planning.rehearsed import Rehearsal
from hf_efficient.planning.run_shapes import RunShapes
from hf_efficient.recipe.schema import Recipe

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_BATCH_SIZE = 8
"""Of transformers' ``TrainingArguments``, where a recipe is silent."""


def rehearse_shapes(
    recipe: Recipe,
    config: PretrainedConfig,
    shapes: RunShapes,
    *,
    on_gpu: bool = True,
    processes: int | None = None,
) -> Rehearsal:
    """Rehearse the largest micro-batch of a run, and the largest batch of its evaluations.

    Args:
        recipe: ``method: sft``.
        config: of its model.
        shapes: of the run.
        on_gpu: whether it runs on a GPU.
        processes: that train; default: the recipe's.

    Raises:
        HfEfficientError: what the recipe's own run would refuse.
    """
    evaluated = None if shapes.evaluation is None else shapes.evaluation.row_tokens
    return rehearse_rank(
        _no_more_rows_than_there_are(recipe, shapes),
        config,
        shapes.train.row_tokens,
        padded=shapes.train.padded,
        evaluation_length=evaluated,
        on_gpu=on_gpu,
        processes=processes,
    )


def _no_more_rows_than_there_are(recipe: Recipe, shapes: RunShapes) -> Recipe:
    """The recipe with batches that its data can fill."""
    train = dict(recipe.train)
    for phase, rows in (("train", shapes.rows), ("eval", shapes.evaluation_rows)):
        name = f"per_device_{phase}_batch_size"
        wanted = int(train.get(name, _BATCH_SIZE))
        if 0 < rows < wanted:
            train[name] = rows
    return recipe.model_copy(update={"train": train})


def shape_remarks(shapes: RunShapes) -> list[str]:
    """What a plan by the data takes for granted."""
    told = [
        f"rows have {shapes.train.row_tokens:,} tokens, those of the largest micro-batch that the data can give",
        "a step or an evaluation takes as long as its positions, in proportion to those of the largest batch",
    ]
    if shapes.step_rows > shapes.rows:
        told.append(
            f"a step asks for {shapes.step_rows:,} rows, and the data have {shapes.rows:,}: these are an epoch of one "
            "step"
        )
    return told
