"""How often a run evaluates and saves, where its data were not read: as far as the recipe alone tells."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hf_efficient.planning.arguments import run_arguments
from hf_efficient.planning.isolation import process_kept
from hf_efficient.planning.rehearsed_evaluation import RehearsedEvaluation
from hf_efficient.planning.run_flow import evaluates_by_epoch, evaluations_of, saves_by_epoch, saves_of
from hf_efficient.planning.shapes import BatchShapes
from hf_efficient.recipe.schema import Recipe

if TYPE_CHECKING:
    from trl import SFTConfig


@dataclass(frozen=True)
class UnreadPauses:
    """What a run does beside its steps.

    Attributes:
        evaluation_batches: of all evaluations on one rank; None where the recipe does not tell.
        saves: checkpoints that it writes; None where the recipe does not tell.
    """

    evaluation_batches: float | None
    saves: int | None


def unread_pauses(recipe: Recipe, steps: int, evaluation: RehearsedEvaluation | None, ranks: int) -> UnreadPauses:
    """Of a run whose steps are known.

    Args:
        recipe: the recipe.
        steps: of the run.
        evaluation: the batch that was rehearsed; None where the run evaluates nothing.
        ranks: that share an evaluation's rows.
    """
    with process_kept(), tempfile.TemporaryDirectory() as directory:
        args = run_arguments(recipe, directory)
    run = BatchShapes(1, 1.0, steps, epoch_steps=steps, step_content=1.0)  # its epoch is read by nothing below
    batches = 0.0 if evaluation is None else _batches(recipe, args, run, evaluation, ranks)
    return UnreadPauses(batches, None if saves_by_epoch(args) else saves_of(args, run))


def _batches(
    recipe: Recipe, args: SFTConfig, run: BatchShapes, evaluation: RehearsedEvaluation, ranks: int
) -> float | None:
    """Of as many rows as ``data.max_eval_examples`` allows, all as long as the rehearsed ones."""
    if evaluates_by_epoch(args):
        return None
    times = evaluations_of(args, run, at_end=recipe.evaluate.at_end)
    if times == 0:
        return 0.0
    rows = recipe.data.max_eval_examples
    return None if rows is None else times * rows / ranks / evaluation.rows
