"""Weights spread over the ranks as well, by DeepSpeed."""

from __future__ import annotations

from hf_efficient.planning.changes.change import Change, Situation


def shard_weights_by_zero(situation: Situation) -> Change | None:
    """Several ranks, each with all weights, to ZeRO-3; it leaves quantized weights whole."""
    distributed = situation.settings.recipe.distributed
    whole = situation.is_replicated or distributed.strategy in ("zero1", "zero2")
    quantized = situation.settings.recipe.adapter.method == "qlora"
    if not whole or quantized or not situation.matters("weights"):
        return None
    return Change(
        {"distributed.strategy": "zero3"},
        gives="each GPU keeps its share of weights, gradients and optimizer's state",
        costs="weights are gathered for every forward and backward",
    )
