"""Gradients and optimizer state spread over the ranks."""

from __future__ import annotations

from hf_efficient.planning.changes.change import Change, Situation


def shard_gradients(situation: Situation) -> Change | None:
    """Several ranks, each with all of it, to ZeRO-2."""
    if not situation.is_replicated or not situation.matters("optimizer_state", "gradients"):
        return None
    return Change(
        {"distributed.strategy": "zero2"},
        gives="each GPU keeps its share of the gradients and of the optimizer's state",
        costs="a reduction in every micro-batch, and buckets of a fixed size",
    )
