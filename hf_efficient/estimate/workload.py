"""What a step computes on: how many positions, and which of them attend to which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Workload", "causal_pairs", "square_pairs"]


def causal_pairs(lengths: Mapping[int, int], window: int | None = None) -> int:
    """Pairs of query and key that causal attention needs.

    Token ``i`` (from 1) of a document attends to itself and all before it, ``i`` keys, or ``min(i, window)`` under
    a sliding window (transformers counts the token itself as one of the window's). A document of ``n`` tokens thus
    needs ``n (n + 1) / 2`` pairs, or with ``n > window``: ``window (window + 1) / 2 + (n - window) * window``.

    Hand-worked: n = 4: 1 + 2 + 3 + 4 = 10; window 2: 1 + 2 + 2 + 2 = 7.

    Args:
        lengths: tokens of a document to how many documents are that long.
        window: sliding window in tokens; None without.
    """
    total = 0
    for length, count in lengths.items():
        seen = length if window is None else min(length, window)
        total += count * (seen * (seen + 1) // 2 + (length - seen) * seen)
    return total


def square_pairs(lengths: Mapping[int, int]) -> int:
    """Pairs that a kernel computes which fills the whole matrix and masks it: ``n * n`` for a row of ``n`` tokens."""
    return sum(count * length * length for length, count in lengths.items())


@dataclass(frozen=True)
class Workload:
    """The sequences of a step, or of a whole run: everything here adds up.

    Attributes:
        documents: tokens of a document to how many documents are that long; no padding. What the model's FLOPs count.
        rows: positions of a row, padding included, to how many rows are that long. What the hardware computes; a
            pack of documents is one row, a padding-free batch too.
        masked_square: whether the attention kernel computes every pair of a row and masks (``eager``, and SDPA where
            it is given a mask); otherwise it computes the causal pairs of the documents alone (FlashAttention).
        head_tokens: positions that the LM head projects; None for all. ``SFTTrainer`` on a GPU projects only those
            that bear a loss.
        head_recomputed: whether the backward projects them once more (fused and chunked losses).
    """

    documents: Mapping[int, int]
    rows: Mapping[int, int]
    masked_square: bool = True
    head_tokens: int | None = None
    head_recomputed: bool = False

    @classmethod
    def of(
        cls,
        documents: Iterable[int],
        rows: Iterable[int] | None = None,
        *,
        masked_square: bool = True,
        head_tokens: int | None = None,
        head_recomputed: bool = False,
    ) -> Workload:
        """Counts lengths. ``rows`` defaults to a row for each document, without padding."""
        counted = Counter(documents)
        counted_rows = counted if rows is None else Counter(rows)
        return cls(counted, counted_rows, masked_square, head_tokens, head_recomputed)

    @property
    def document_tokens(self) -> int:
        """Tokens that are not padding."""
        return sum(length * count for length, count in self.documents.items())

    @property
    def row_tokens(self) -> int:
        """Positions computed, padding included."""
        return sum(length * count for length, count in self.rows.items())

    def needed_pairs(self, window: int | None) -> int:
        """Pairs that the mathematics needs in a layer with this window."""
        return causal_pairs(self.documents, window)

    def computed_pairs(self, window: int | None) -> int:
        """Pairs that the kernel computes in a layer with this window."""
        return square_pairs(self.rows) if self.masked_square else self.needed_pairs(window)
