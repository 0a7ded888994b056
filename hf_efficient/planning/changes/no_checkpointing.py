"""Without activation checkpointing: keep everything for the backward, compute nothing again."""

from __future__ import annotations

from hf_efficient.planning.changes.change import Change, Situation, activation_checkpointing


def store_activations(situation: Situation) -> Change | None:
    """Where checkpointing is on, though the recipe fits with it."""
    field, on = activation_checkpointing(situation.settings)
    if not on or not situation.fits:
        return None
    return Change(
        {f"train.{field}": False},
        gives="no forward is computed twice",
        costs="what every layer computes is kept for the backward",
    )
