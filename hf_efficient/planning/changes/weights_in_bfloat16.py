"""Weights of two bytes in place of four."""

from __future__ import annotations

from hf_efficient.planning.changes.change import Change, Situation

_FIRST_WITH_BFLOAT16 = (8, 0)


def weights_in_bfloat16(situation: Situation) -> Change | None:
    """Where they are in float32, on a device that computes in bfloat16."""
    capability = situation.device.compute_capability
    if situation.weights != "float32" or (capability is not None and capability < _FIRST_WITH_BFLOAT16):
        return None
    trains_all = situation.settings.recipe.adapter.method == "full"
    gives = "the weights take half of the memory"
    return Change(
        {"model.dtype": "bfloat16"},
        gives=f"{gives}, and so do their gradients and the optimizer's state" if trains_all else gives,
        costs="updates below the weights' last digit (of three) are lost" if trains_all else "a base that is rounded",
        keeps_training=not trains_all,
    )
