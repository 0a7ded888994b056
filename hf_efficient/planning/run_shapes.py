"""What a run computes, from its data and its arguments: the steps, and the evaluations between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hf_efficient.data.build import PreferenceData, SftData
from hf_efficient.data.prepare import is_packed, is_padding_free
from hf_efficient.data.stats import lengths, pair_lengths
from hf_efficient.planning.packs import Lengths, packs
from hf_efficient.planning.run_flow import evaluations_of, saves_of
from hf_efficient.planning.shapes import Batching, BatchShapes, batch_shapes

if TYPE_CHECKING:
    from trl import SFTConfig


@dataclass(frozen=True)
class RunShapes:
    """What a run computes.

    Attributes:
        train: of its steps.
        evaluation: of one evaluation, whose ``steps`` are its batches; None where the run evaluates nothing.
        evaluations: how many there are.
        rows: to train on.
        step_rows: that a step asks for.
        evaluation_rows: to evaluate on.
        saves: checkpoints that the run writes.
    """

    train: BatchShapes
    evaluation: BatchShapes | None = None
    evaluations: int = 0
    rows: int = 0
    step_rows: int = 0
    evaluation_rows: int = 0
    saves: int = 0

    @property
    def evaluated_positions(self) -> float:
        """Of all evaluations, padding included."""
        return (
            0.0 if self.evaluation is None else self.evaluations * self.evaluation.steps * self.evaluation.step_tokens
        )


@dataclass(frozen=True)
class RunRows:
    """Tokens of each row that a run trains and evaluates on, each of shape (rows,); packs where they are packed.

    Of preference pairs, of prompt and answer, each of shape (rows, 2).
    """

    train: Lengths
    evaluation: Lengths | None = None


def rows_of(data: SftData | PreferenceData, args: SFTConfig) -> RunRows:
    """Of prepared data.

    Args:
        data: of the run.
        args: of the run.
    """
    if isinstance(data, PreferenceData):
        pairs = (pair_lengths(held, args.max_length) for held in (data.train, data.eval) if held is not None)
        return RunRows(*pairs)
    return RunRows(lengths(data.train), None if data.eval is None else lengths(data.eval))


def rows_as_prepared(documents: RunRows, args: SFTConfig) -> RunRows:
    """What a run with these arguments makes of documents: cut to ``max_length``, packed where it packs.

    Args:
        documents: tokens of each example.
        args: of the run.
    """

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
        prepared(documents.train, _packs(args) and is_packed(args, "train")),
        None if evaluation is None else prepared(evaluation, _packs(args) and is_packed(args, "eval")),
    )


def run_shapes(args: SFTConfig, rows: RunRows, processes: int, *, at_end: bool) -> RunShapes:
    """The shapes of a run.

    Args:
        args: of the run.
        rows: of the run.
        processes: that train side by side.
        at_end: whether the run evaluates once more after the last step.
    """
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
    """How the training's rows become batches."""
    return Batching(
        rows=args.per_device_train_batch_size,
        micro_batches=args.gradient_accumulation_steps,
        processes=processes,
        epochs=args.num_train_epochs,
        max_steps=args.max_steps,
        padding_free=_packs(args) and is_padding_free(args),
        by_length=args.train_sampling_strategy == "group_by_length",
        multiple_of=args.pad_to_multiple_of,  # type: ignore[arg-type]
        drop_last=args.dataloader_drop_last,
    )


def _packs(args: SFTConfig) -> bool:
    """Whether the trainer could lay examples one after the other: that of preference pairs (``DPOConfig``) cannot."""
    return hasattr(args, "packing")
