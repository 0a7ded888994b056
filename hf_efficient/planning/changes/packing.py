"""Examples laid one after the other, without padding."""

from __future__ import annotations

from hf_efficient.planning.changes.change import Change, Situation


def pack(situation: Situation) -> Change | None:
    """Where much of a step is padding, and there is a length to pack to."""
    settings = situation.settings
    if (
        not situation.is_padded
        or situation.settings.recipe.method != "sft"
        or settings.train("packing")
        or settings.train("max_length") is None
    ):
        return None
    return Change(
        {"train.packing": True},
        gives="examples fill rows of the full length, without padding",
        costs="a step holds more examples, so that an epoch has fewer steps",
        keeps_training=False,
    )
