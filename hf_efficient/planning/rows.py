"""Rows for a rehearsal, all of one length, and their batches with the padding of rows that differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trl import SFTConfig


def longest_rows(args: SFTConfig, length: int, count: int, *, packed: bool) -> list[dict[str, Any]]:
    """Rows of ``length`` tokens, all of which bear a loss.

    A pack holds two documents: with one alone the attention would need no mask, which in a real pack it does.

    Args:
        args: how rows are packed.
        length: tokens of a row.
        count: how many.
        packed: whether these are.
    """
    row: dict[str, Any] = {"input_ids": [1] * length, "labels": [1] * length}
    if packed and args.packing_strategy != "wrapped" and length > 1:
        row["seq_lengths"] = [length // 2, length - length // 2]
    return [row] * count


class PaddedBatches:
    """A collator whose batches say that the last token of their first row is padding: their shapes stay the same."""

    def __init__(self, collator: Callable[[list[dict[str, Any]]], dict[str, Any]]) -> None:
        self._collator = collator

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch of shape (rows, tokens)."""
        batch = self._collator(rows)
        batch["attention_mask"][0, -1] = 0
        batch["labels"][0, -1] = -100
        return batch
