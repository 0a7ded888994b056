"""More rows at a time, accumulated less often."""

from __future__ import annotations

from hf_efficient.planning.changes.change import Change, Situation


def larger_micro_batch(situation: Situation) -> Change | None:
    """Double, where the recipe fits and accumulates an even number, so that the global batch stays the same."""
    rows = int(situation.settings.train("per_device_train_batch_size"))
    accumulated = int(situation.settings.train("gradient_accumulation_steps"))
    if accumulated % 2 or not situation.fits:
        return None
    return Change(
        {"train.per_device_train_batch_size": 2 * rows, **situation.accumulating(accumulated // 2)},
        gives="fewer and larger kernels for the same tokens; the global batch stays the same",
        costs="activations and logits of twice as many rows",
    )
