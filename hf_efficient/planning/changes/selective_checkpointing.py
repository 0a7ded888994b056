"""Activation checkpointing of every second layer: between all of them and none."""

from __future__ import annotations

import inspect

from hf_efficient.planning.changes.change import Change, Situation, activation_checkpointing

_EVERY = "every_n_layers"


def checkpoint_every_second_layer(situation: Situation) -> Change | None:
    """Where all layers are checkpointed though the recipe fits, or none is and it does not."""
    field, on = activation_checkpointing(situation.settings)
    held = situation.settings.train(f"{field}_kwargs") or {}
    if not isinstance(held, dict) or on != situation.fits or held.get(_EVERY, 1) != 1:
        return None
    if not (on or situation.matters("activations")) or not _is_known():
        return None
    gives, costs = "half of the layers keep their input alone", "the forward of every second layer is computed twice"
    if on:
        gives, costs = "only every second layer's forward is computed twice", "what the others compute is kept"
    return Change(
        {f"train.{field}": True, f"train.{field}_kwargs": {**held, _EVERY: 2}},
        gives=gives,
        costs=costs,
    )


def _is_known() -> bool:
    """Whether the installed transformers can leave layers out (5.23 can)."""
    from transformers import PreTrainedModel

    enable = getattr(PreTrainedModel, "activation_checkpointing_enable", None)
    return enable is not None and _EVERY in inspect.signature(enable).parameters
