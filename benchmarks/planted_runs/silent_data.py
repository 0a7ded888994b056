"""Rows whose labels are not what they should be."""

from __future__ import annotations

import torch

from planted_runs.data import Rows

__all__ = ["MaskedRows", "SomeUnlabelled"]


class MaskedRows(Rows):
    """One label in sixty-four is left."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = super().__getitem__(index)
        kept = torch.arange(len(row["labels"])) % 64 == 63
        return {**row, "labels": torch.where(kept, row["labels"], -100)}


class SomeUnlabelled(Rows):
    """Every sixth row has no label at all."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = super().__getitem__(index)
        return row if index % 6 else {**row, "labels": torch.full_like(row["labels"], -100)}
