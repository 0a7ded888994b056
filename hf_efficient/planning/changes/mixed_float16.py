"""Mixed precision in float16 in the place of bfloat16, which older devices have not."""

from __future__ import annotations

from hf_efficient.planning.changes.change import Change, Situation
from hf_efficient.recipe.schema import mixed_precision


def mix_float16(situation: Situation) -> Change | None:
    """Where the recipe would be in bfloat16, and the device has none."""
    if not situation.device.lacks_bfloat16 or mixed_precision(situation.settings.recipe) != "bf16":
        return None
    return Change(
        {"train.fp16": True, "train.bf16": False},
        gives="float16 is what the device multiplies fast; it has no bfloat16",
        costs="a narrower range: the loss is scaled, and a step whose gradients overflow is left out",
    )
