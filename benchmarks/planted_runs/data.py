"""Data sets and collators that are as they should be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from planted_runs.corpus import examples, read_rows

__all__ = ["Examples", "Padding", "Rows", "row_of"]


def row_of(ids: Any) -> dict[str, torch.Tensor]:
    """A row without padding, all of which is learnt."""
    tokens = torch.as_tensor(ids)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Rows of one length."""

    def __init__(self, corpus: Path, count: int | None = None, skip: int = 0, join: int = 1) -> None:
        """Take so many of the corpus's rows.

        Args:
            corpus: its folder.
            count: how many; None: all.
            skip: so many from the start.
            join: so many of the corpus's rows make one.
        """
        rows = read_rows(corpus)
        rows = rows[: len(rows) // join * join].reshape(-1, rows.shape[1] * join)
        self.rows = rows[skip : None if count is None else skip + count]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return row_of(self.rows[index])


class Examples(Dataset[dict[str, list[int]]]):
    """Examples as long as they are; every ``long_every``-th is several of them joined."""

    def __init__(self, corpus: Path, count: int, long_every: int | None = None, joined: int = 6) -> None:
        """Take the first of the corpus.

        Args:
            corpus: its folder.
            count: how many.
            long_every: None: none is joined.
            joined: how many make a long one.
        """
        held = examples(corpus)
        self.ids: list[list[int]] = []
        place = 0
        for number in range(count):
            several = joined if long_every and number % long_every == 0 else 1
            self.ids.append([token for one in held[place : place + several] for token in one])
            place = (place + several) % (len(held) - joined)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return {"input_ids": self.ids[index]}


class Padding:
    """Pads rows to the longest of the batch."""

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """``input_ids``, ``attention_mask`` and ``labels``, int64 (rows, longest)."""
        ids = [torch.as_tensor(row["input_ids"]) for row in rows]
        pad = torch.nn.utils.rnn.pad_sequence
        ones = [torch.ones_like(one) for one in ids]
        return {
            "input_ids": pad(ids, batch_first=True),
            "attention_mask": pad(ones, batch_first=True),
            "labels": pad(ids, batch_first=True, padding_value=-100),
        }
