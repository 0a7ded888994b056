"""Perplexity, token accuracy and exact match, as ``evaluate.Metric`` classes that touch neither a hub nor the disk."""

import inspect
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import datasets
import evaluate

_IGNORED_LABEL = -100
_LARGEST_EXPONENT = 709.0
"""exp(709.78...) is the largest that a 64-bit float holds."""


class OfflineMetric(evaluate.Metric):
    """An ``evaluate.Metric`` whose class is in this package and whose inputs stay in memory. ``evaluate.Metric`` makes
    a cache folder at once; this class only with ``keep_in_memory=False``, which ``num_process > 1`` needs. Under
    transformers' Trainer predictions are gathered before, so one process is right."""

    _COLUMNS: ClassVar[dict[str, Any]]
    _SOURCE = ""

    def __init__(self, config_name: str | None = None, keep_in_memory: bool = True, **kwargs: Any) -> None:
        super().__init__(config_name=config_name, keep_in_memory=keep_in_memory, **kwargs)

    def _build_data_dir(self) -> str:
        return self._data_dir_root if self.keep_in_memory else super()._build_data_dir()

    def _info(self) -> evaluate.MetricInfo:
        columns, about = datasets.Features(self._COLUMNS), inspect.getdoc(type(self)) or ""
        return evaluate.MetricInfo(about, self._SOURCE, columns)


class Perplexity(OfflineMetric):
    """exp(sum of NLL / number of tokens) over all target tokens. Every token weighs the same, so no grouping into
    examples or batches matters, unlike in the Trainer's mean of batch means, ``eval_loss``. ``nll``: summed over each
    group of ``tokens``, in nats. Nothing where there are no tokens; inf where exp overflows."""

    _COLUMNS: ClassVar = {"nll": datasets.Value("float64"), "tokens": datasets.Value("int64")}
    _SOURCE = "F. Jelinek et al., Perplexity: a measure of the difficulty of speech tasks, 1977."

    def _compute(self, nll: Sequence[float], tokens: Sequence[int]) -> dict[str, float]:
        total = sum(tokens)
        if total == 0:
            return {}
        mean = math.fsum(nll) / total
        return {"perplexity": math.inf if mean > _LARGEST_EXPONENT else math.exp(mean)}


class TokenAccuracy(OfflineMetric):
    """Share of positions where ``predictions[i][t]``, the argmax, equals ``references[i][t]``, -100 left out."""

    _COLUMNS: ClassVar = dict.fromkeys(("predictions", "references"), datasets.List(datasets.Value("int64")))

    def _compute(self, predictions: Sequence[Sequence[int]], references: Sequence[Sequence[int]]) -> dict[str, float]:
        pairs = [
            predicted == label
            for row, labels in zip(predictions, references, strict=True)
            for predicted, label in zip(row, labels, strict=True)
            if label != _IGNORED_LABEL
        ]
        return {"token_accuracy": sum(pairs) / len(pairs)} if pairs else {}


class ExactMatch(OfflineMetric):
    """Share of predictions equal to their reference but for whitespace (``normalise``); case and punctuation count."""

    _COLUMNS: ClassVar = dict.fromkeys(("predictions", "references"), datasets.Value("string"))
    _SOURCE = "P. Rajpurkar et al., SQuAD: 100,000+ questions for machine comprehension, 2016."

    def _compute(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        pairs = zip(predictions, references, strict=True)
        matches = [normalise(answer) == normalise(expected) for answer, expected in pairs]
        return {"exact_match": sum(matches) / len(matches)} if matches else {}


def normalise(text: str) -> str:
    """The text as exact match compares it: outer whitespace removed, every inner run of it one space, nothing else."""
    return " ".join(text.split())
