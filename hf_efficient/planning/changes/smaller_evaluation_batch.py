"""Fewer rows at a time in evaluations."""

from __future__ import annotations

from hf_efficient.planning.changes.change import Change, Situation


def smaller_evaluation_batch(situation: Situation) -> Change | None:
    """Halve, where an evaluation takes more than training does."""
    rows = int(situation.settings.train("per_device_eval_batch_size"))
    if rows < 2 or situation.memory.peak_phase != "evaluation":
        return None
    return Change(
        {"train.per_device_eval_batch_size": rows // 2},
        gives="logits and activations of fewer rows at a time in an evaluation, which takes more memory than training",
        costs="more and smaller kernels in evaluations",
        repeats=True,
    )
