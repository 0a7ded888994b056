"""A frozen base in 4 bits."""

from __future__ import annotations

from hf_efficient.planning.changes.change import Change, Situation


def quantize_the_base(situation: Situation) -> Change | None:
    """LoRA to QLoRA."""
    if situation.settings.recipe.adapter.method != "lora" or not situation.matters("weights"):
        return None
    return Change(
        {"adapter.method": "qlora"},
        gives="the linear layers of the frozen base take about half a byte per weight (NF4)",
        costs="each product unpacks its weights first; the adapter learns on a rounded base",
        keeps_training=False,
    )
