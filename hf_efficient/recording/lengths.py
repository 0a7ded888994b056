"""The documents of a batch: sequences that attend to themselves alone, and how long they are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import torch

from hf_efficient.estimate.flops import MicroBatch
from hf_efficient.records.steps import SequenceCounts

LENGTH_BOUNDS: tuple[int, ...] = tuple(dict.fromkeys(round(2 ** (quarter / 4)) for quarter in range(24 * 4 + 1)))
"""Upper bounds of the length buckets in tokens: a quarter of an octave apart, so that a length is known to 19%.

1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 16, 19, 23, 27, 32, 38, 45, 54, 64, ...: every power of two is a bound. A document
is in the bucket of the first bound that is not below its length.
"""


def document_starts(positions: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor | None:
    """Where ``position_ids`` start again at 0, shape (rows, positions), bool; None where they are of another kind.

    Packed and padding-free batches carry them in place of an attention mask. A padding-free batch that is padded to a
    multiple of some length continues with zeros, and so do its documents: each of these positions is one of its own, to
    the attention as well.

    Args:
        positions: shape (rows, positions), or (1, positions) for all rows.
        shape: that of ``input_ids``.
    """
    if positions.ndim != 2 or len(shape) != 2 or positions.shape[1] != shape[1]:
        return None
    if positions.shape[0] not in (1, shape[0]):
        return None
    return positions.eq(0).expand(shape)


def documents_of_starts(starts: torch.Tensor) -> list[int] | None:
    """Tokens of each document, from starts on the host; None where a row goes on with the document of another."""
    firsts = starts.reshape(-1).nonzero().flatten().tolist()
    rows, length = starts.shape
    if len(firsts) < rows or not all(starts[:, 0].tolist()):
        return None
    return [after - first for first, after in zip(firsts, [*firsts[1:], rows * length], strict=True)]


def documents_of_rows(row_sums: Iterable[int]) -> list[int]:
    """Tokens of each document, from the sums of an attention mask's rows; a row without any holds none."""
    return [tokens for tokens in row_sums if tokens]


def sequence_counts(batches: Sequence[MicroBatch]) -> SequenceCounts | None:
    """The sequences of a step; None of nothing."""
    lengths = [tokens for batch in batches for tokens in batch.documents]
    if not lengths:
        return None
    buckets: dict[int, int] = {}
    for tokens in lengths:
        bound = LENGTH_BOUNDS[min(bisect_left(LENGTH_BOUNDS, tokens), len(LENGTH_BOUNDS) - 1)]
        buckets[bound] = buckets.get(bound, 0) + 1
    return SequenceCounts(
        rows=sum(batch.rows for batch in batches),
        documents=len(lengths),
        shortest=min(lengths),
        longest=max(lengths),
        length_buckets={str(bound): buckets[bound] for bound in sorted(buckets)},
    )
