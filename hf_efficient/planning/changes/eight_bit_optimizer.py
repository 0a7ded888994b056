"""AdamW with moments of one byte per value.

Source of what it costs: Dettmers et al. 2021, 8-bit optimizers via block-wise quantization, table 1.
"""

from __future__ import annotations

from hf_efficient.planning.changes.change import Change, Situation

IN_FLOAT32 = ("adamw_torch", "adamw_torch_fused", "paged_adamw_32bit")
"""Optimizers of the Trainer that are AdamW with moments in float32."""


def eight_bit_optimizer(situation: Situation) -> Change | None:
    """In place of an AdamW in float32."""
    name = situation.settings.train("optim")
    if name not in IN_FLOAT32 or name.startswith("paged") or not situation.matters("optimizer_state"):
        return None
    return Change(
        {"train.optim": "adamw_8bit"},
        gives="the optimizer's state takes a quarter of the memory",
        costs="the moments are rounded to 8 bits, block by block; its authors saw no loss of quality",
    )
