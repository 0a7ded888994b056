"""Metrics of the logits for transformers' Trainer, without storing the logits: perplexity, token accuracy and exact
match, as ``evaluate.Metric`` classes that touch neither a hub nor the disk.

The Trainer stores what ``preprocess_logits_for_metrics`` returns for the whole evaluation, for ``compute_metrics``. The
logits of 1,000 examples of 1,000 tokens, vocabulary 128,000, would take 512 GB; this takes 12 bytes per token.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import datasets
import evaluate
import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import EvalPrediction

from hf_efficient.errors import ModelError

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


LOGIT_METRICS = ("perplexity", "token_accuracy")
"""The metrics that come from logits; ``exact_match`` needs generated answers (``AnswerEvaluator``)."""

IGNORED_LABEL = -100  # PyTorch's ``ignore_index`` of cross-entropy
_POSITIONS_AT_ONCE = 1024  # whose logits are in float32 at one time: 512 MiB with a vocabulary of 128,000

Preprocess = Callable[[Any, Any], Any]


class Reduced(NamedTuple):
    """What ``reduce_logits`` returns, made without logits: it passes this on."""

    ids: torch.Tensor
    nll: torch.Tensor


class ComputeMetrics:
    """The Trainer's ``compute_metrics``, of what ``reduce_logits`` kept. Works with ``eval_do_concat_batches`` on and
    off, and with ``batch_eval_metrics``: then once per batch, with the metrics at ``compute_result``."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._pending: list[EvalPrediction] = []

    def __call__(self, prediction: EvalPrediction, compute_result: bool = True) -> dict[str, float]:
        """The metrics, without the Trainer's ``eval_`` prefix; a metric of no target token is left out.
        ``prediction.predictions`` is the pair ``(ids, nll)`` of ``reduce_logits`` for the whole evaluation set (arrays
        [examples, longest], padded with -100), or a list of such pairs; ``label_ids`` alike."""
        self._pending.append(prediction)
        if not compute_result:
            return {}
        predictions, self._pending = self._pending, []
        rows = [row for each in predictions for row in _target_tokens(each)]

        metrics: dict[str, float] = {}
        if "perplexity" in self.names:
            sums = [float(nll.sum(dtype=np.float64)) for _, nll, _ in rows]
            metrics |= Perplexity().compute(nll=sums, tokens=[len(nll) for _, nll, _ in rows]) or {}
        if "token_accuracy" in self.names:
            ids, labels = [ids for ids, _, _ in rows], [labels for _, _, labels in rows]
            metrics |= TokenAccuracy().compute(predictions=ids, references=labels) or {}
        return metrics


def make_compute_metrics(names: Iterable[str]) -> tuple[ComputeMetrics | None, Preprocess | None]:
    """A Trainer's ``(compute_metrics, preprocess_logits_for_metrics)``; Nones where no name is of ``LOGIT_METRICS``."""
    wanted = tuple(name for name in LOGIT_METRICS if name in set(names))
    return (ComputeMetrics(wanted), reduce_logits) if wanted else (None, None)


@torch.no_grad()
def reduce_logits(outputs: Any, labels: Any) -> Any:
    """What the metrics need of a batch's logits: the most likely token and the label's NLL at every position.
    ``outputs``: the logits [batch, length, vocabulary], a tuple whose first three-dimensional tensor they are, or
    ``Reduced``; ``labels``: [batch, length], -100 where no loss is taken. Returns ``(ids, nll)``, int64 and float32
    [batch, length], **aligned with the labels**: position t holds what the logits at t-1 say. Position 0 holds -100 and
    0; the NLL is 0 where the label is -100. Without labels only ``ids``. Raises ``ModelError``: there are no logits."""
    if isinstance(outputs, Reduced):
        return outputs.ids, outputs.nll
    logits = _find_logits(outputs)
    ids = torch.full(logits.shape[:2], IGNORED_LABEL, dtype=torch.int64, device=logits.device)
    ids[:, 1:] = logits[:, :-1].argmax(dim=-1)
    if isinstance(labels, (tuple, list)):
        labels = labels[0] if labels else None
    if labels is None:
        return ids
    nll = torch.zeros(logits.shape[:2], dtype=torch.float32, device=logits.device)
    # One row and one stretch of it at a time: a float32 copy of all the logits would double the largest
    # tensor of the evaluation (and in a padding-free batch the one row is the whole batch).
    for row in range(logits.shape[0]):
        for start in range(0, logits.shape[1] - 1, _POSITIONS_AT_ONCE):
            stop = min(start + _POSITIONS_AT_ONCE, logits.shape[1] - 1)
            nll[row, start + 1 : stop + 1] = cross_entropy(
                logits[row, start:stop].float(),
                labels[row, start + 1 : stop + 1].to(logits.device),
                ignore_index=IGNORED_LABEL,
                reduction="none",
            )
    return ids, nll


def reduce_scores(log_probs: torch.Tensor, is_top1: torch.Tensor, labels: torch.Tensor) -> Reduced:
    """``reduce_logits`` of a batch of which a fused head gives the labels' scores alone. ``log_probs``: float [batch,
    length - 1], of the label: position t speaks of label t+1; 0 where that is -100. ``is_top1``: bool [batch, length -
    1]: the label is the most likely token; else ``ids`` holds -100."""
    labels = labels.to(log_probs.device)
    ids = torch.full_like(labels, IGNORED_LABEL)
    ids[:, 1:] = torch.where(is_top1, labels[:, 1:], IGNORED_LABEL)
    nll = torch.zeros(labels.shape, dtype=torch.float32, device=labels.device)
    nll[:, 1:] = -log_probs
    return Reduced(ids, nll)


def _find_logits(outputs: Any) -> torch.Tensor:
    # A mixture of experts puts its scalar auxiliary loss before the logits, others put caches and states after.
    candidates = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    for candidate in candidates:
        if isinstance(candidate, torch.Tensor) and candidate.ndim == 3:
            return candidate
    raise ModelError(
        "evaluate.metrics: the model's evaluation returned no logits, which perplexity and token_accuracy "
        "need. Turn off what skips them (train.use_liger_kernel: false), or leave these metrics out."
    )


def _target_tokens(prediction: EvalPrediction) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """``(ids, nll, labels)`` of every example, each only where a loss is taken."""
    held: tuple[Any, Any] = (prediction.predictions, prediction.label_ids)
    batches = zip(*held, strict=True) if isinstance(held[0], list) else [held]  # a list: eval_do_concat_batches=False
    for predictions, its_labels in batches:
        ids, nll, labels = (_array(one) for one in (*predictions, its_labels))
        counted = labels != IGNORED_LABEL
        counted[:, 0] = False
        for row, where in enumerate(counted):
            yield ids[row][where], nll[row][where], labels[row][where]


def _array(values: Any) -> np.ndarray:
    if isinstance(values, (tuple, list)):  # several label names: the first are the token labels
        values = values[0]
    return values.cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
