"""Shapes, steps, evaluations and saves of a run's batches, and other batchings of its rows."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from transformers.trainer_pt_utils import get_length_grouped_indices

from hf_efficient.estimate.forecast import Schedule, schedule_of
from hf_efficient.planning.arguments import process_kept, run_arguments
from hf_efficient.planning.simulated_trainer import SimulatedEvaluation
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_fields import is_packed, is_padding_free
from hf_efficient.records.plan import PlannedBatching, PlannedData

if TYPE_CHECKING:
    from trl import SFTConfig

Lengths: TypeAlias = npt.NDArray[np.int64]
"""Tokens of each row, shape (rows,)."""


def packs(documents: Lengths, max_length: int) -> Lengths:
    """Tokens of each pack that TRL makes of examples, best fit decreasing, shape (packs,)."""
    import datasets
    import pyarrow as pa
    from trl import pack_dataset

    from hf_efficient.data.prepare import progress_bars

    ends = np.concatenate([[0], np.cumsum(documents)])
    tokens = pa.LargeListArray.from_arrays(pa.array(ends), pa.array(np.zeros(ends[-1], dtype=np.int8)))
    with progress_bars(len(documents)):
        packed = pack_dataset(datasets.Dataset(pa.table({"input_ids": tokens})), max_length, "bfd")
    return np.array([sum(row) for row in packed["seq_lengths"]], dtype=np.int64)


@dataclass(frozen=True)
class Batching:
    """``max_steps``: in place of ``epochs``; 0 or less: none. ``padding_free``: the rows of a micro-batch are laid one
    after the other. ``multiple_of``: of padded lengths. ``shuffled``: rows not put by length come in a random order.
    ``whole_steps``: rows that do not fill a step are left out."""

    rows: int
    micro_batches: int = 1
    processes: int = 1
    epochs: float = 1.0
    max_steps: int = -1
    padding_free: bool = False
    by_length: bool = False
    multiple_of: int | None = None
    drop_last: bool = False
    shuffled: bool = True
    whole_steps: bool = False


@dataclass(frozen=True)
class BatchShapes:
    """What a run computes. ``row_tokens``: of each row of the largest micro-batch; where rows are laid one after the
    other, their mean. ``step_tokens``: positions of a mean optimizer step of all processes, of which ``step_content``
    are not padding. ``padded``: rows of a micro-batch differ in length."""

    row_tokens: int
    step_tokens: float
    steps: int
    epoch_steps: int
    step_content: float
    padded: bool = False

    @property
    def padding_share(self) -> float:
        return 1 - self.step_content / self.step_tokens


def batch_shapes(lengths: Sequence[int] | npt.NDArray[np.int64], how: Batching, seed: int = 0) -> BatchShapes:
    """The largest micro-batch that can come, and the mean step of one epoch in some order.

    Padded: a row is as long as the longest of its micro-batch. Laid one after the other: the longest rows may meet.

    Hand-worked: lengths 8, 2, 4, 2 in their own order, in micro-batches of 2 padded rows: 8 + 8 and 4 + 4 positions,
    row_tokens 8; in steps of one micro-batch 12 positions, of which 8 are no padding, 2 steps an epoch. Laid one after
    the other: row_tokens 6, 8 positions. Pairs (8, 2) and (4, 2) in one micro-batch: 4 answers of 8, half padding.
    ``lengths``: tokens of each row, shape (rows,), at least one; or of each answer of a pair, shape (rows, 2)."""
    rows = np.asarray(lengths, dtype=np.int64).reshape(len(lengths), -1)
    held, answers = rows.max(axis=1), rows.shape[1]
    together = how.rows if how.padding_free else 1
    longest = math.ceil(np.sort(held)[-together:].sum() / min(together, len(held)))
    steps, epoch_steps, micro_batches = _counts(len(held), how)
    if how.padding_free:
        positions = float(held.sum())
    else:
        longest = _rounded_up(longest, how.multiple_of)
        order = _order(held, how, seed)
        batches = (order[start : start + how.rows] for start in range(0, len(order), how.rows))
        widths = (_rounded_up(int(batch.max()), how.multiple_of) * len(batch) for batch in batches)
        positions = float(answers * sum(widths))
    per_step = micro_batches * how.processes / math.ceil(len(held) / how.rows)
    padded = not how.padding_free and how.rows * answers > 1 and positions > rows.sum()
    content = float(rows.sum()) * per_step
    return BatchShapes(longest, positions * per_step, steps, epoch_steps, content, bool(padded))


def _order(held: npt.NDArray[np.int64], how: Batching, seed: int) -> npt.NDArray[np.int64]:
    """Rows as they come; those by length are sorted in stretches of at most fifty batches, by transformers' sampler."""
    if how.by_length:
        generator = torch.Generator().manual_seed(seed)
        return held[get_length_grouped_indices(held.tolist(), how.rows, generator=generator)]
    return np.random.default_rng(seed).permutation(held) if how.shuffled else held


def _counts(rows: int, how: Batching) -> tuple[int, int, float]:
    """Steps of run and epoch, a process's micro-batches in the mean one, as ``Trainer.set_initial_training_values``."""
    whole = how.rows * how.processes
    batches = max(1, rows // whole if how.drop_last else math.ceil(rows / whole))
    if how.whole_steps:
        batches = how.micro_batches * max(1, rows // (whole * how.micro_batches))
    per_epoch = max(1, math.ceil(batches / how.micro_batches))
    steps = how.max_steps if how.max_steps > 0 else math.ceil(how.epochs * per_epoch)
    return steps, per_epoch, how.micro_batches if steps < per_epoch else batches / per_epoch


def _rounded_up(length: int, multiple_of: int | None) -> int:
    return length if not multiple_of else math.ceil(length / multiple_of) * multiple_of


def batchings(
    documents: Lengths, how: Batching, *, packed: bool, max_length: int | None, seed: int
) -> list[PlannedBatching]:
    kinds: dict[str, tuple[Batching, Lengths, dict[str, Any]]] = {}
    for name, strategy in (("as they come", "random"), ("grouped by length", "group_by_length")):
        apart = replace(how, padding_free=False, by_length=strategy == "group_by_length")
        kinds[name] = (apart, documents, {"train.packing": False, "train.train_sampling_strategy": strategy})
    if max_length is not None:
        together = replace(how, padding_free=True, by_length=False)
        kinds["packed"] = (together, packs(documents, max_length), {"train.packing": True})
    chosen = "packed" if packed else "grouped by length" if how.by_length else "as they come"
    found = []
    for name, (kind, rows, overrides) in kinds.items():
        shapes = batch_shapes(rows, replace(kind, epochs=1.0, max_steps=-1), seed)
        positions = round(shapes.step_tokens * shapes.epoch_steps)
        share, steps = shapes.padding_share, shapes.epoch_steps
        found.append(PlannedBatching(name, overrides, name == chosen, positions, share, steps))
    return found


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
    """Tokens of each row or pack of a run, shape (rows,); of pairs, prompt and answer, shape (rows, 2)."""

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

    evaluation, knows_packing = documents.evaluation, hasattr(args, "packing")  # those of preference pairs do not
    return RunRows(
        prepared(documents.train, knows_packing and is_packed(args, "train")),
        None if evaluation is None else prepared(evaluation, knows_packing and is_packed(args, "eval")),
    )


def run_shapes(args: SFTConfig, rows: RunRows, processes: int, *, at_end: bool) -> RunShapes:
    how = batching_of(args, processes)
    train = batch_shapes(rows.train, how, args.seed)
    held, wanted = len(rows.train), how.rows * how.micro_batches * how.processes
    saves = saves_of(args, train)
    if rows.evaluation is None:
        return RunShapes(train, rows=held, step_rows=wanted, saves=saves)
    once = replace(how, micro_batches=1, epochs=1.0, max_steps=-1, shuffled=False, drop_last=False, whole_steps=False)
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
        padding_free=hasattr(args, "packing") and is_padding_free(args),
        by_length=args.train_sampling_strategy == "group_by_length",
        multiple_of=getattr(args, "pad_to_multiple_of", None),
        drop_last=args.dataloader_drop_last,
        # The prompts of a step are answered together; GRPO's groups are counted as rows.
        whole_steps=hasattr(args, "max_completion_length") and not hasattr(args, "num_generations"),
    )


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


def planned_rows(rows: Lengths, evaluated: int, shapes: RunShapes) -> PlannedData:
    share = shapes.train.padding_share
    return PlannedData(len(rows), int(rows.sum()), int(rows.max()), share, evaluated, shapes.evaluations)
