"""What the process that trains takes from its loader: how long it waited, and what it was given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import torch

__all__ = ["Taken", "batch_tensors"]


class Taken(msgspec.Struct):
    """Sums since the training began. (A struct, since it is copied in every step.)

    Attributes:
        batches: taken.
        wait_seconds: host time until they were there, with the sampler and pinning.
        rows: of them, first dimensions; None where one told none.
        bytes: of their tensors.
        start_seconds: making the iterators of the epochs, with the start of their workers.
        end_seconds: ending the epochs: workers that do not persist are joined.
        first_wait_seconds: of ``wait_seconds``, that for the first batch of each epoch.
        ready: batches that workers had ready when one was asked for, summed over the askings; None without workers.
    """

    batches: int = 0
    wait_seconds: float = 0.0
    rows: int | None = 0
    bytes: int = 0
    start_seconds: float = 0.0
    end_seconds: float = 0.0
    first_wait_seconds: float = 0.0
    ready: int | None = None

    def add(self, batch: Any) -> None:
        """Count the batch's rows and bytes."""
        rows: int | None = None
        for value in _values(batch):
            if isinstance(value, torch.Tensor):
                self.bytes += value.nbytes
                if rows is None and value.ndim:
                    rows = value.shape[0]
        self.batches += 1
        self.rows = None if self.rows is None or rows is None else self.rows + rows


def batch_tensors(batch: Any) -> list[torch.Tensor]:
    """The tensors of a batch as collators make them: one, or a mapping or sequence of them."""
    return [value for value in _values(batch) if isinstance(value, torch.Tensor)]


def _values(batch: Any) -> Iterable[Any]:
    if isinstance(batch, (dict, Mapping)):  # a dict's check is the cheap one
        return batch.values()
    return batch if isinstance(batch, (list, tuple)) else (batch,)
