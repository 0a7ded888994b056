"""Fused attention, which never holds the whole matrix of scores."""

from __future__ import annotations

from hf_efficient.planning.changes.change import Change, Situation


def fused_attention(situation: Situation) -> Change | None:
    """Where the recipe asks for ``eager``."""
    if situation.settings.recipe.model.attn_implementation != "eager":
        return None
    return Change(
        {"model.attn_implementation": "sdpa"},
        gives="the attention's scores, which grow with the square of the length, are never held whole",
        costs="nothing: the same attention, in another order of sums",
    )
