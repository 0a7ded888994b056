"""A run may evaluate thousands of times; its account holds some of them."""

from __future__ import annotations

from collections.abc import Sequence

from hf_efficient.records import Evaluation

__all__ = ["MOST_EVALUATIONS", "few_evaluations"]

MOST_EVALUATIONS = 100
"""Some 30 kB of ``run.json``."""


def few_evaluations(evaluations: Sequence[Evaluation], most: int = MOST_EVALUATIONS) -> list[Evaluation]:
    """At most so many of them, in their order: all, or the first, the last, the extremes of each metric, and others.

    The others lie evenly between the first and the last. A metric's extremes are its first smallest and its first
    largest value; those of later metrics go first where there are too many.

    Args:
        evaluations: in the order in which they were made.
        most: at least 2.
    """
    count = len(evaluations)
    if count <= most:
        return list(evaluations)
    kept = {0, count - 1}
    for index in _extremes(evaluations):
        if len(kept) < most:
            kept.add(index)
    others = [index for index in range(count) if index not in kept]
    room = most - len(kept)
    kept.update(others[(2 * place + 1) * len(others) // (2 * room)] for place in range(room))
    return [evaluations[index] for index in sorted(kept)]


def _extremes(evaluations: Sequence[Evaluation]) -> list[int]:
    names = dict.fromkeys(name for evaluation in evaluations for name in evaluation.metrics)
    found = []
    for name in names:
        values = {
            index: value
            for index, evaluation in enumerate(evaluations)
            if (value := evaluation.metrics.get(name)) is not None
        }
        if values:
            found += [min(values, key=values.__getitem__), max(values, key=values.__getitem__)]
    return found
