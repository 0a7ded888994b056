"""The longest rows of a run's data, in the place of all: what its largest batches are made of."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import numpy.typing as npt

from hf_efficient.data.build import PreferenceData, SftData
from hf_efficient.data.stats import lengths, pair_lengths

if TYPE_CHECKING:
    from trl import DPOConfig, SFTConfig

__all__ = ["ANSWERED_AT_ONCE", "longest_data", "longest_rows"]

ANSWERED_AT_ONCE = 8
"""Prompts that ``AnswerEvaluator`` answers together, per process."""


def longest_data(data: SftData | PreferenceData, args: SFTConfig | DPOConfig, steps: int) -> SftData | PreferenceData:
    """Data of so many optimizer steps and one evaluation batch, every one of them the longest on every process.

    The rows stay as they were prepared, so that the run's own collator makes the batch; read in their order, each
    micro-batch of each process holds the same rows.

    Args:
        data: of the run.
        args: with the accumulation and the batch sizes that the steps have.
        steps: that are trained.
    """
    world_size = args.world_size
    batches = args.gradient_accumulation_steps * world_size * steps
    train = _repeated(data.train, _lengths(data, args, "train"), args.per_device_train_batch_size, batches)
    evaluation = data.eval
    if evaluation is not None:
        held, rows = _lengths(data, args, "eval"), args.per_device_eval_batch_size
        # Of fewer rows than a batch has, several processes get full batches (accelerate begins again), one does not.
        evaluation = _repeated(evaluation, held, rows if world_size > 1 else min(rows, len(held)), world_size)
    if isinstance(data, PreferenceData):
        return replace(data, train=train, eval=evaluation)
    prompts = sorted(data.eval_examples, key=_prompt_length, reverse=True)[: ANSWERED_AT_ONCE * world_size]
    return replace(data, train=train, eval=evaluation, eval_examples=prompts)


def longest_rows(held: npt.NDArray[np.int64], count: int) -> list[int]:
    """Indices of the ``count`` longest rows, the longest first; from the first one again where there are fewer.

    Args:
        held: tokens of each row, shape (rows,), at least one.
        count: so many.
    """
    longest = np.argsort(-held, kind="stable")[:count].tolist()
    return list(islice(cycle(longest), count))


def _repeated(dataset: datasets.Dataset, held: npt.NDArray[np.int64], rows: int, batches: int) -> datasets.Dataset:
    return dataset.select(longest_rows(held, rows) * batches)


def _lengths(data: SftData | PreferenceData, args: SFTConfig | DPOConfig, name: str) -> npt.NDArray[np.int64]:
    dataset = data.train if name == "train" else data.eval
    assert dataset is not None
    if isinstance(data, PreferenceData):
        return pair_lengths(dataset, args.max_length).max(axis=1)
    return lengths(dataset)


def _prompt_length(example: dict[str, Any]) -> int:
    return len(json.dumps(example["prompt"]))
