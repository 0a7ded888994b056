"""An adapter in place of all weights."""

from __future__ import annotations

from hf_efficient.planning.changes.change import Change, Situation


def train_an_adapter(situation: Situation) -> Change | None:
    """Full fine-tuning to LoRA on all linear layers."""
    if situation.settings.recipe.adapter.method != "full":
        return None
    return Change(
        {"adapter.method": "lora"},
        gives="no gradients and no optimizer state but those of a small adapter",
        costs="low-rank updates: it may learn less, and wants about ten times the learning rate",
        keeps_training=False,
    )
