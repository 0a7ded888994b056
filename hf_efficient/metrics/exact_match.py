"""Exact match: how many generated answers are, up to whitespace, the reference."""

from __future__ import annotations

from collections.abc import Sequence

import datasets
import evaluate

from hf_efficient.metrics.offline import OfflineMetric

__all__ = ["ExactMatch", "normalise"]


def normalise(text: str) -> str:
    """The text as exact match compares it.

    Leading and trailing whitespace is removed and every run of whitespace in between (spaces, tabs, line
    breaks, and whatever else ``str.split`` takes for whitespace) becomes one space. Nothing else changes:
    upper and lower case, punctuation, articles and Unicode forms all count.
    """
    return " ".join(text.split())


class ExactMatch(OfflineMetric):
    """Share of answers equal to their reference after ``normalise``: whitespace stripped and collapsed."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=(
                "Share of predictions equal to their reference after removing leading and trailing "
                "whitespace and collapsing every inner run of it to one space; case and punctuation count."
            ),
            citation="P. Rajpurkar et al., SQuAD: 100,000+ questions for machine comprehension, 2016.",
            inputs_description=(
                "\npredictions: list of str, the generated answers."
                "\nreferences: list of str, the expected answers."
                "\nReturns {'exact_match': float between 0 and 1}; {} where there are none."
            ),
            features=datasets.Features(
                {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
            ),
        )

    def _compute(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        matches = [
            normalise(answer) == normalise(expected) for answer, expected in zip(predictions, references, strict=True)
        ]
        return {"exact_match": sum(matches) / len(matches)} if matches else {}
