"""Rows of like length in one micro-batch."""

from __future__ import annotations

from hf_efficient.planning.changes.change import Change, Situation


def group_by_length(situation: Situation) -> Change | None:
    """Where much of a step is padding."""
    if (
        not situation.is_padded
        or situation.settings.recipe.method != "sft"
        or situation.settings.train("train_sampling_strategy") == "group_by_length"
    ):
        return None
    return Change(
        {"train.train_sampling_strategy": "group_by_length"},
        gives="rows of like length share a micro-batch, so that few positions are padding",
        costs="the examples come in another order, those of like length together",
    )
