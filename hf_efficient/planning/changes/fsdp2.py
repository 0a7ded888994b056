"""Weights spread over the ranks as well, by torch."""

from __future__ import annotations

from hf_efficient.planning.changes.change import Change, Situation


def shard_weights_by_fsdp(situation: Situation) -> Change | None:
    """Several ranks, each with all weights, to FSDP2."""
    if not situation.is_replicated or not situation.matters("weights"):
        return None
    return Change(
        {"distributed.strategy": "fsdp2"},
        gives="each GPU keeps its share of weights, gradients and optimizer's state",
        costs="weights are gathered layer by layer for every forward and backward",
    )
