"""Supervised fine-tuning and preference pairs."""

from __future__ import annotations

from hf_efficient.recipe.rules.settings import Contradiction, Settings, reads

__all__ = ["dpo_has_its_own_metrics", "dpo_reads_preferences"]


@reads("method", "data.train", "data.eval")
def dpo_reads_preferences(settings: Settings) -> list[Contradiction]:
    """DPO trains on preference pairs, and nothing else does."""
    method = settings.recipe.method
    found: list[Contradiction] = []
    for split, sources in (("train", settings.recipe.data.train), ("eval", settings.recipe.data.eval)):
        for index, source in enumerate(sources):
            key = f"data.{split}.{index}.format"
            if method == "dpo" and source.format not in ("auto", "preference"):
                message = f"is {source.format}, but `method: dpo` trains on preference pairs."
                found.append((key, message, "Write `format: preference`, or `method: sft`."))
            elif method == "sft" and source.format == "preference":
                message = "is preference, but `method: sft` does not train on pairs."
                found.append((key, message, "Write `method: dpo`, or the format of single answers."))
    return found


@reads("method", "evaluate.metrics")
def dpo_has_its_own_metrics(settings: Settings) -> list[Contradiction]:
    """An evaluation of DPO reports the loss and TRL's reward metrics."""
    if settings.recipe.method != "dpo" or not settings.recipe.evaluate.metrics:
        return []
    message = "is set, but an evaluation of `method: dpo` reports the loss and TRL's rewards only."
    return [("evaluate.metrics", message, "Remove it.")]
