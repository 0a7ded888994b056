"""Fields of ``train:`` that contradict one another."""

from __future__ import annotations

from hf_efficient.recipe.rules.settings import Contradiction, Settings, reads

__all__ = ["checkpointing_arguments_need_checkpointing", "loader_options_need_workers", "one_half_precision"]


@reads("train.bf16", "train.fp16", "train.bf16_full_eval", "train.fp16_full_eval")
def one_half_precision(settings: Settings) -> list[Contradiction]:
    """One of bf16 and fp16."""
    found = []
    for suffix in ("", "_full_eval"):
        if settings.train(f"bf16{suffix}") and settings.train(f"fp16{suffix}"):
            message = f"is true, and so is `train.bf16{suffix}`."
            found.append((f"train.fp16{suffix}", message, "Keep one: bf16 where the device has it, else fp16."))
    return found


@reads(
    "train.activation_checkpointing",
    "train.activation_checkpointing_kwargs",
    "train.gradient_checkpointing",
    "train.gradient_checkpointing_kwargs",
)
def checkpointing_arguments_need_checkpointing(settings: Settings) -> list[Contradiction]:
    """Arguments of activation checkpointing, where it is off.

    ``gradient_checkpointing`` is transformers' older name; it counts where the newer one is not given.
    """
    newer = settings.train("activation_checkpointing")
    older = settings.train("gradient_checkpointing")
    if newer if newer is not None else older:
        return []
    switch = "activation_checkpointing" if newer is not None else "gradient_checkpointing"
    message = f"is set, but activation checkpointing is off (`train.{switch}: false`)."
    return [
        (f"train.{name}", message, f"Write `train.{switch}: true`, or remove it.")
        for name in ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")
        if settings.train(name)
    ]


@reads("train.dataloader_num_workers", "train.dataloader_prefetch_factor", "train.dataloader_persistent_workers")
def loader_options_need_workers(settings: Settings) -> list[Contradiction]:
    """torch's DataLoader refuses options of its workers where it has none."""
    if settings.train("dataloader_num_workers") != 0:
        return []
    message = "is set, but `train.dataloader_num_workers` is 0."
    return [
        (f"train.{name}", message, "Write at least 1 worker, or remove it.")
        for name in ("dataloader_prefetch_factor", "dataloader_persistent_workers")
        if settings.train(name)
    ]
