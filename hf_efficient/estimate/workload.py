"""What a step computes on: how many positions, and which of them attend to which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Amounts(NamedTuple):
    """What the FLOPs of a forward and backward are linear in.

    Attributes:
        tokens: positions that pass through the layers.
        pairs: pairs of query and key in a layer, by its sliding window; None: a layer without one.
        head_tokens: positions that the LM head projects.
    """

    tokens: int
    pairs: Mapping[int | None, int]
    head_tokens: int


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


class Workload(NamedTuple):
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
        needed_head_tokens: those of ``head_tokens`` that the loss needs; None for all of them.
        square_windows: whether, where it is not ``masked_square``, a layer whose window is no longer than the row is
            (SDPA is given no mask for causal attention, but one for a window).
    """

    documents: Mapping[int, int]
    rows: Mapping[int, int]
    masked_square: bool = True
    head_tokens: int | None = None
    head_recomputed: bool = False
    needed_head_tokens: int | None = None
    square_windows: bool = False

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
        if self.masked_square:
            return square_pairs(self.rows)
        if window is not None and self.square_windows:
            masked = {length: count for length, count in self.rows.items() if length >= window}
            causal = {length: count for length, count in self.rows.items() if length < window}
            return square_pairs(masked) + causal_pairs(causal)
        return self.needed_pairs(window)

    def needed(self, windows: Iterable[int | None]) -> Amounts:
        """What the mathematics needs in a model whose layers have these windows."""
        head = self.head_tokens if self.needed_head_tokens is None else self.needed_head_tokens
        tokens = self.document_tokens
        return Amounts(tokens, {one: self.needed_pairs(one) for one in windows}, tokens if head is None else head)

    def computed(self, windows: Iterable[int | None]) -> Amounts:
        """What is computed for it."""
        head, tokens = self.head_tokens, self.row_tokens
        return Amounts(tokens, {one: self.computed_pairs(one) for one in windows}, tokens if head is None else head)
