"""What a prepared data set holds, counted from its Arrow columns."""

from __future__ import annotations

from dataclasses import dataclass

import datasets
import numpy as np
import numpy.typing as npt

__all__ = ["DataStats", "lengths", "loss_bearing"]

_BATCH = 10_000


@dataclass(frozen=True)
class DataStats:
    """Counts of a prepared data set.

    Attributes:
        examples: examples in it, before packing.
        dropped_overlong: examples left out because they are longer than max_length (``overlong: drop``).
        truncated: examples cut to max_length.
        dropped_masked: examples left out because no token of theirs bears loss (after truncation).
        masked: examples kept although no token of theirs bears loss; they cost time and teach nothing.
        tokens_total: tokens in it.
        tokens_loss_bearing: tokens with a label other than -100.
        longest: tokens of the longest example, before any truncation.
        packs: rows after packing; None where it is not packed.
        fill_rate: share of the packs' places (packs times max_length) that hold a token; None where it is not
            packed.
    """

    examples: int
    dropped_overlong: int
    truncated: int
    dropped_masked: int
    masked: int
    tokens_total: int
    tokens_loss_bearing: int
    longest: int
    packs: int | None = None
    fill_rate: float | None = None


def lengths(dataset: datasets.Dataset) -> npt.NDArray[np.int64]:
    """Tokens per row (``input_ids``), shape (rows,)."""
    return _per_row(dataset, "input_ids", count_masked=True)


def loss_bearing(dataset: datasets.Dataset) -> npt.NDArray[np.int64]:
    """Labels other than -100 per row, shape (rows,)."""
    return _per_row(dataset, "labels", count_masked=False)


def _per_row(dataset: datasets.Dataset, column: str, count_masked: bool) -> npt.NDArray[np.int64]:
    parts = [np.zeros(0, dtype=np.int64)]
    for table in dataset.select_columns([column]).with_format("arrow").iter(_BATCH):
        array = table[column].combine_chunks()
        sizes = array.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
        if count_masked:
            parts.append(sizes)
            continue
        bearing = array.flatten().to_numpy(zero_copy_only=False) != -100
        sums = np.concatenate([[0], np.cumsum(bearing)])
        ends = np.cumsum(sizes)
        parts.append(sums[ends] - sums[ends - sizes])
    return np.concatenate(parts)
