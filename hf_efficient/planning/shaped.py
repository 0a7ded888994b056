"""A rehearsal of the largest batches that a run's data give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_efficient.planning.ranks.rank import rehearse_rank
from hf_efficient.planning.rehearsal import Rehearsal
from hf_efficient.planning.run_shapes import RunShapes
from hf_efficient.recipe.schema import Recipe

if TYPE_CHECKING:
    from transformers import PretrainedConfig

__all__ = ["rehearse_shapes", "shape_remarks"]


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
        recipe,
        config,
        shapes.train.row_tokens,
        padded=shapes.train.padded,
        evaluation_length=evaluated,
        on_gpu=on_gpu,
        processes=processes,
    )


def shape_remarks(shapes: RunShapes) -> list[str]:
    """What a plan by the data takes for granted."""
    told = [
        f"rows have {shapes.train.row_tokens:,} tokens, those of the largest micro-batch that the data can give",
        "a step or an evaluation takes as long as its positions, in proportion to those of the largest batch",
    ]
    if shapes.step_rows > shapes.rows:
        told.append(
            f"a step asks for {shapes.step_rows:,} rows, and the data have {shapes.rows:,}: every step is smaller than "
            "planned, and an epoch is one step"
        )
    return told
