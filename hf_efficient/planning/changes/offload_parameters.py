"""The weights on the host."""

from __future__ import annotations

from hf_efficient.planning.changes.change import Change, Situation


def offload_the_weights(situation: Situation) -> Change | None:
    """Where they are sharded: under ZeRO-3 and FSDP2."""
    distributed = situation.settings.recipe.distributed
    sharded = distributed.strategy in ("zero3", "fsdp2")
    if distributed.offload.parameters or not sharded or not situation.matters("weights"):
        return None
    return Change(
        {"distributed.offload.parameters": True},
        gives="each GPU's share of the weights lies in the host's memory",
        costs="it crosses PCIe whenever weights are gathered",
    )
