"""The optimizer on the host."""

from __future__ import annotations

from hf_efficient.planning.changes.change import Change, Situation


def offload_the_optimizer(situation: Situation) -> Change | None:
    """Under DeepSpeed, whose own AdamW steps there; from plain data parallelism with ZeRO-2."""
    distributed = situation.settings.recipe.distributed
    under_zero = distributed.strategy in ("zero1", "zero2", "zero3")
    if distributed.offload.optimizer or not (under_zero or situation.is_replicated):
        return None
    optimizer = situation.settings.train("optim")
    if optimizer not in ("adamw_torch", "adamw_torch_fused") or not situation.matters("optimizer_state"):
        return None
    strategy = {} if under_zero else {"distributed.strategy": "zero2"}
    return Change(
        {**strategy, "distributed.offload.optimizer": True},
        gives="the optimizer's state lies in the host's memory, and gradients go there as they are made",
        costs="gradients and weights cross PCIe in every step, and the host computes it",
    )
