"""AdamW with moments of one byte per value, which the driver moves to the host where the device is full."""

from __future__ import annotations

from hf_efficient.planning.changes.change import Change, Situation
from hf_efficient.planning.changes.eight_bit_optimizer import IN_FLOAT32


def paged_optimizer(situation: Situation) -> Change | None:
    """In place of another AdamW."""
    name = situation.settings.train("optim")
    if name not in (*IN_FLOAT32, "adamw_8bit", "adamw_bnb_8bit") or not situation.matters("optimizer_state"):
        return None
    return Change(
        {"train.optim": "paged_adamw_8bit"},
        gives="the optimizer's state takes a quarter of the memory, and leaves the device where that is full",
        costs="rounded moments; what was moved to the host comes back over PCIe in each step, which is not in the time",
    )
