"""Activation checkpointing: keep the input of every layer, compute the rest again."""

from __future__ import annotations

from hf_efficient.planning.changes.change import Change, Situation, activation_checkpointing


def checkpoint_activations(situation: Situation) -> Change | None:
    """Where it is off."""
    field, on = activation_checkpointing(situation.settings)
    if on or not situation.matters("activations"):
        return None
    return Change(
        {f"train.{field}": True},
        gives="of each layer only the input is kept for the backward",
        costs="each layer's forward is computed twice",
    )
