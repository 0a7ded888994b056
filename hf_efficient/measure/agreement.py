"""A decision that rank 0 takes, and that all ranks act on after the same optimizer step."""

from __future__ import annotations

import torch
import torch.distributed as dist

__all__ = ["Agreement"]


class Agreement:
    """Rank 0 tells its decision, and after which step it will tell the next one, so that all wait for it there.

    One broadcast of two integers per exchange (and a sum, where the ranks have something to add up), over the hosts
    (gloo), which no device waits for; rank 0 says when the next is worth it. A single process needs none.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        """Make the group; all ranks do so at the same time.

        Args:
            rank: of this process.
            world_size: processes that train.
        """
        self._rank = rank
        self._shared = world_size > 1 and dist.is_available() and dist.is_initialized()
        self._group = dist.new_group(backend="gloo") if self._shared and dist.is_gloo_available() else None
        self._next = 0

    @property
    def decides(self) -> bool:
        """Whether this rank takes the decisions."""
        return self._rank == 0 or not self._shared

    def due(self, step: int) -> bool:
        """Whether there is an exchange after this step; of one process always."""
        return not self._shared or step >= self._next

    def settle(self, decision: int = 0, next_step: int = 0) -> int:
        """Tell rank 0's decision, or hear it; the arguments of the other ranks are not read.

        Args:
            decision: any number.
            next_step: the step after which the next exchange takes place, on all ranks.
        """
        if not self._shared:
            return decision
        told = torch.tensor([decision, next_step], dtype=torch.int64, device=self._device())
        dist.broadcast(told, src=0, group=self._group)
        decision, self._next = (int(one) for one in told.tolist())
        return decision

    def total(self, value: float) -> float:
        """The sum of the ranks' values; part of an exchange."""
        if not self._shared:
            return value
        told = torch.tensor([value], dtype=torch.float64, device=self._device())
        dist.all_reduce(told, group=self._group)
        return float(told)

    def _device(self) -> torch.device:
        if self._group is not None:
            return torch.device("cpu")
        return torch.device(torch.accelerator.current_accelerator() or "cpu")
