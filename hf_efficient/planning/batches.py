"""The shapes of a run's batches, from its tokenised rows, and how these could be batched instead."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from transformers.trainer_pt_utils import get_length_grouped_indices

from hf_efficient.records.plan import PlannedBatching

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
    after the other. ``multiple_of``: of padded lengths. ``shuffled``: rows not put by length come in a random order."""

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

    Args:
        lengths: tokens of each row, shape (rows,), at least one; or of each answer of a pair, shape (rows, 2).
    """
    rows = np.asarray(lengths, dtype=np.int64).reshape(len(lengths), -1)
    held, answers = rows.max(axis=1), rows.shape[1]
    together = how.rows if how.padding_free else 1
    longest = math.ceil(np.sort(held)[-together:].sum() / min(together, len(held)))
    steps, epoch_steps, micro_batches = _counts(len(held), how)
    if how.padding_free:
        positions = float(held.sum())
    else:
        longest = _rounded_up(longest, how.multiple_of)
        positions = answers * _padded(held, how, seed)
    per_step = micro_batches * how.processes / math.ceil(len(held) / how.rows)
    padded = not how.padding_free and how.rows * answers > 1 and positions > rows.sum()
    content = float(rows.sum()) * per_step
    return BatchShapes(longest, positions * per_step, steps, epoch_steps, content, bool(padded))


def _padded(held: npt.NDArray[np.int64], how: Batching, seed: int) -> float:
    order = _order(held, how, seed)
    starts = range(0, len(order), how.rows)
    batches = (order[start : start + how.rows] for start in starts)
    return float(sum(_rounded_up(int(batch.max()), how.multiple_of) * len(batch) for batch in batches))


def _order(held: npt.NDArray[np.int64], how: Batching, seed: int) -> npt.NDArray[np.int64]:
    """Rows as they come; those by length are sorted in stretches of at most fifty batches, by transformers' sampler."""
    if how.by_length:
        generator = torch.Generator().manual_seed(seed)
        return held[get_length_grouped_indices(held.tolist(), how.rows, generator=generator)]
    return np.random.default_rng(seed).permutation(held) if how.shuffled else held


def _counts(rows: int, how: Batching) -> tuple[int, int, float]:
    """Optimizer steps of the run and of an epoch, and micro-batches of one process in the mean step, as
    ``Trainer.set_initial_training_values`` (transformers 5) counts."""
    whole = how.rows * how.processes
    batches = max(1, rows // whole if how.drop_last else math.ceil(rows / whole))
    per_epoch = max(1, math.ceil(batches / how.micro_batches))
    steps = how.max_steps if how.max_steps > 0 else math.ceil(how.epochs * per_epoch)
    return steps, per_epoch, how.micro_batches if steps < per_epoch else batches / per_epoch


def _rounded_up(length: int, multiple_of: int | None) -> int:
    return length if not multiple_of else math.ceil(length / multiple_of) * multiple_of


def batchings(
    documents: Lengths, how: Batching, *, packed: bool, max_length: int | None, seed: int
) -> list[PlannedBatching]:
    apart = replace(how, padding_free=False)
    kinds = {
        "as they come": (replace(apart, by_length=False), documents, _unpacked("random")),
        "grouped by length": (replace(apart, by_length=True), documents, _unpacked("group_by_length")),
    }
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


def _unpacked(strategy: str) -> dict[str, Any]:
    return {"train.packing": False, "train.train_sampling_strategy": strategy}
