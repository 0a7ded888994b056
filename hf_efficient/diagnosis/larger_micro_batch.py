"""Larger micro-batches: so many times the rows, first out of the accumulation, which changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["LargerMicroBatch", "larger_micro_batch"]

_MOST_TIMES = 16


@dataclass(frozen=True)
class LargerMicroBatch:
    """A change of the recipe.

    Attributes:
        times: the rows, a power of two.
        growth: times the examples that an optimizer step holds.
        overrides: by dotted key.
        costs: in words.
    """

    times: int
    growth: float
    overrides: dict[str, Any]
    costs: str


def larger_micro_batch(rows: int, accumulated: int, fixed: float, computed: float) -> LargerMicroBatch:
    """So many times the rows that what a micro-batch costs by itself is a tenth of its time.

    Args:
        rows: of a micro-batch.
        accumulated: micro-batches of an optimizer step.
        fixed: seconds that a micro-batch takes before it holds anything.
        computed: seconds of its forward and backward.
    """
    times = _times(fixed, computed)
    overrides: dict[str, Any] = {"train.per_device_train_batch_size": rows * times}
    kept = max(1, accumulated // times)
    if accumulated > 1:
        overrides["train.gradient_accumulation_steps"] = kept
    costs = "activations of more rows"
    growth = kept * times / accumulated
    if growth > 1:
        costs += f"; a step holds {growth:g} times the examples: an epoch has fewer steps, and the learning rate may "
        costs += "want to grow"
    return LargerMicroBatch(times, growth, overrides, costs)


def _times(fixed: float, computed: float) -> int:
    """A power of two."""
    varying = max(computed - fixed, 1e-9)
    times = 2
    while times < _MOST_TIMES and fixed / times > 0.1 * (fixed / times + varying):
        times *= 2
    return times
