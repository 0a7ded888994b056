"""The loss without whole logits."""

from __future__ import annotations

from hf_efficient.planning.changes.change import Change, Situation
from hf_efficient.recipe.rules.training import fits_chunked_loss


def chunked_loss(situation: Situation) -> Change | None:
    """In place of ``nll``, where nothing else of the recipe needs the LM head."""
    settings = situation.settings
    if settings.train("loss_type") != "nll" or not fits_chunked_loss(settings) or not situation.matters("logits"):
        return None
    return Change(
        {"train.loss_type": "chunked_nll"},
        gives="logits are computed and scored tile by tile, and never held whole",
        costs="the LM head is computed twice",
    )
