"""Token accuracy: how often the most likely next token is the right one."""

from __future__ import annotations

from collections.abc import Sequence

import datasets
import evaluate

from hf_efficient.metrics.labels import IGNORED_LABEL
from hf_efficient.metrics.offline import OfflineMetric

__all__ = ["TokenAccuracy"]


class TokenAccuracy(OfflineMetric):
    """Share of loss-bearing positions where the most likely token equals the label.

    Predictions and references are already aligned: ``predictions[i][t]`` is the model's choice for the token
    ``references[i][t]`` (made from the tokens before it). References of -100 (prompt, padding) do not count.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Share of loss-bearing positions where the argmax of the logits equals the label.",
            citation="",
            inputs_description=(
                "\npredictions: list of lists of token ids, the argmax for each position."
                "\nreferences: list of lists of token ids of the same lengths, -100 where no loss is taken."
                "\nReturns {'token_accuracy': float between 0 and 1}; {} where every reference is -100."
            ),
            features=datasets.Features(
                {
                    "predictions": datasets.List(datasets.Value("int64")),
                    "references": datasets.List(datasets.Value("int64")),
                }
            ),
        )

    def _compute(self, predictions: Sequence[Sequence[int]], references: Sequence[Sequence[int]]) -> dict[str, float]:
        pairs = [
            predicted == label
            for row, labels in zip(predictions, references, strict=True)
            for predicted, label in zip(row, labels, strict=True)
            if label != IGNORED_LABEL
        ]
        return {"token_accuracy": sum(pairs) / len(pairs)} if pairs else {}
