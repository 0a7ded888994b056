"""Rows of half the length."""

from __future__ import annotations

from typing import Any

from hf_efficient.planning.changes.change import Change, Situation

_SHORTEST = 128


def shorter_rows(situation: Situation) -> Change | None:
    """Halve ``train.max_length``; packs are accumulated twice as often, so that a step sees as many tokens.

    Where the recipe names its global batch, that stays, and a step of packs sees half as many.
    """
    train, distributed = situation.settings.train, situation.settings.recipe.distributed
    length = train("max_length")
    if length is None or length < 2 * _SHORTEST or not situation.matters("activations", "logits", "rest"):
        return None
    overrides: dict[str, Any] = {"train.max_length": length // 2}
    fate = {"truncate": "are cut", "drop": "are left out", "error": "end the run"}[
        situation.settings.recipe.data.overlong
    ]
    costs = f"examples of more than {length // 2:,} tokens {fate}"
    if train("packing") and distributed.global_batch_size is not None:
        costs += "; a step of as many packs sees half as many tokens"
    elif train("packing"):
        overrides["train.gradient_accumulation_steps"] = 2 * int(train("gradient_accumulation_steps"))
    return Change(
        overrides,
        gives="activations and logits of fewer tokens at a time",
        costs=costs,
        keeps_training=False,
        repeats=True,
    )
