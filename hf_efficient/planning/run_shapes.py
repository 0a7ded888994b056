"""What a run computes, from its rows and arguments: its steps, and the evaluations and saves between them."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hf_efficient.estimate.forecast import Schedule, schedule_of
from hf_efficient.planning.arguments import process_kept, run_arguments
from hf_efficient.planning.batches import Batching, BatchShapes, Lengths, batch_shapes, packs
from hf_efficient.planning.simulated_trainer import SimulatedEvaluation
from hf_efficient.recipe.schema import Recipe

if TYPE_CHECKING:
    from typing import Literal

    from trl import SFTConfig


def evaluations_of(args: SFTConfig, train: BatchShapes, *, at_end: bool) -> int:
    return _schedule(args, train, at_end).evaluations_left(0) + bool(args.eval_on_start)


def saves_of(args: SFTConfig, train: BatchShapes) -> int:
    """At most for ``save_strategy: best``, which saves after evaluations; that before the first step is not saved."""
    schedule = _schedule(args, train)
    return schedule.evaluations_left(0) if schedule.save_best else schedule.saves_left(0)


def _schedule(args: SFTConfig, train: BatchShapes, at_end: bool = False) -> Schedule:
    every = args.eval_steps or args.logging_steps, args.save_steps
    return schedule_of(args, train.steps, train.epoch_steps, *every, evaluate_at_end=at_end)


@dataclass(frozen=True)
class RunShapes:
    """What a run computes; the ``steps`` of ``evaluation`` are its batches, ``step_rows`` what a step asks for."""

    train: BatchShapes
    evaluation: BatchShapes | None = None
    evaluations: int = 0
    rows: int = 0
    step_rows: int = 0
    evaluation_rows: int = 0
    saves: int = 0

    @property
    def evaluated_positions(self) -> float:
        one = self.evaluation
        return 0.0 if one is None else self.evaluations * one.steps * one.step_tokens


@dataclass(frozen=True)
class RunRows:
    """Tokens of each row or pack that a run trains and evaluates on, shape (rows,); of preference pairs, of prompt and
    answer, shape (rows, 2)."""

    train: Lengths
    evaluation: Lengths | None = None


def rows_as_prepared(documents: RunRows, args: SFTConfig) -> RunRows:
    """What a run with these arguments makes of documents: cut to ``max_length``, packed where it packs."""

    def prepared(held: Lengths, packed: bool) -> Lengths:
        if args.max_length is None:
            return held
        if packed and args.packing_strategy == "wrapped":
            whole = int(held.sum()) // args.max_length
            return np.full(max(1, whole), args.max_length, dtype=np.int64)
        cut = np.minimum(held, args.max_length)
        return packs(cut, args.max_length) if packed else cut

    evaluation = documents.evaluation
    return RunRows(
        prepared(documents.train, _is_packed(args, "train")),
        None if evaluation is None else prepared(evaluation, _is_packed(args, "eval")),
    )


def run_shapes(args: SFTConfig, rows: RunRows, processes: int, *, at_end: bool) -> RunShapes:
    how = batching_of(args, processes)
    train = batch_shapes(rows.train, how, args.seed)
    held, wanted = len(rows.train), how.rows * how.micro_batches * how.processes
    saves = saves_of(args, train)
    if rows.evaluation is None:
        return RunShapes(train, rows=held, step_rows=wanted, saves=saves)
    once = replace(how, micro_batches=1, epochs=1.0, max_steps=-1, shuffled=False, drop_last=False)
    evaluated = args.per_device_eval_batch_size
    evaluation = batch_shapes(rows.evaluation, replace(once, rows=evaluated))
    times = evaluations_of(args, train, at_end=at_end)
    return RunShapes(train, evaluation, times, held, wanted, len(rows.evaluation), saves)


def batching_of(args: SFTConfig, processes: int) -> Batching:
    return Batching(
        rows=args.per_device_train_batch_size,
        micro_batches=args.gradient_accumulation_steps,
        processes=processes,
        epochs=args.num_train_epochs,
        max_steps=args.max_steps,
        padding_free=_is_padding_free(args),
        by_length=args.train_sampling_strategy == "group_by_length",
        multiple_of=getattr(args, "pad_to_multiple_of", None),
        drop_last=args.dataloader_drop_last,
    )


def _is_packed(args: SFTConfig, name: Literal["train", "eval"]) -> bool:
    """``False`` of arguments that know no packing: those of preference pairs (``DPOConfig``), ``TrainingArguments``."""
    if not hasattr(args, "packing"):
        return False
    from hf_efficient.data.prepare import is_packed

    return is_packed(args, name)


def _is_padding_free(args: SFTConfig) -> bool:
    if not hasattr(args, "packing"):
        return False
    from hf_efficient.data.prepare import is_padding_free

    return is_padding_free(args)


def unread_pauses(
    recipe: Recipe, steps: int | None, evaluation: SimulatedEvaluation | None, ranks: int
) -> tuple[float | None, int | None]:
    """Batches of all evaluations on one rank, and checkpoints; None where the recipe alone does not show it."""
    if steps is None:
        return 0.0 if evaluation is None else None, None
    with process_kept(), tempfile.TemporaryDirectory() as directory:
        args = run_arguments(recipe, directory)
    run = BatchShapes(1, 1.0, steps, epoch_steps=steps, step_content=1.0)  # its epoch is read by nothing below
    by_epoch, saving = args.eval_strategy == "epoch", args.save_strategy
    saves = None if saving == "epoch" or (saving == "best" and by_epoch) else saves_of(args, run)
    times = 0 if evaluation is None else evaluations_of(args, run, at_end=recipe.evaluate.at_end)
    if evaluation is None or (not by_epoch and times == 0):
        return 0.0, saves
    rows = recipe.data.max_eval_examples
    return None if by_epoch or rows is None else times * rows / ranks / evaluation.rows, saves
