"""Fewer rows at a time, accumulated more often."""

from __future__ import annotations

from hf_efficient.planning.changes.change import Change, Situation


def smaller_micro_batch(situation: Situation) -> Change | None:
    """Divide by the smallest factor, so that the global batch stays the same."""
    settings = situation.settings
    rows = int(settings.train("per_device_train_batch_size"))
    if rows < 2 or not situation.matters("activations", "logits", "rest"):
        return None
    costs = "more and smaller kernels for the same tokens"
    if settings.train("packing") or settings.train("padding_free"):
        costs += "; attention, whose mask covers the whole micro-batch, has less to compute"
    factor = next(number for number in range(2, rows + 1) if rows % number == 0)
    return Change(
        {
            "train.per_device_train_batch_size": rows // factor,
            **situation.accumulating(factor * int(settings.train("gradient_accumulation_steps"))),
        },
        gives="activations and logits of fewer rows at a time; the global batch stays the same",
        costs=costs,
        repeats=True,
    )
