"""One storage, from its allocation to its end."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(slots=True)
class StorageLife:
    """What is known of a storage.

    Attributes:
        bytes: its size.
        shape, dtype: of the tensor that it was first seen with.
        operator: that allocated it.
        phase: that it was allocated in.
        module: that ran then, by its name in the model.
        born_at: number of events before its allocation.
        freed_at: number of events up to its end; None while it lives.
        category: what it is used for; empty while nobody has said so.
    """

    bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    operator: str
    phase: str
    module: str
    born_at: int
    freed_at: int | None = None
    category: str = ""

    def lives_at(self, event: int) -> bool:
        """Whether it is allocated once so many events have happened."""
        return self.born_at < event and (self.freed_at is None or self.freed_at > event)
