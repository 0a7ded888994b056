"""Metrics of the logits for transformers' Trainer, without storing the logits: perplexity and token accuracy, as
``evaluate.Metric`` classes that touch neither a hub nor the disk.

The Trainer stores what ``preprocess_logits_for_metrics`` returns for the whole evaluation, for ``compute_metrics``. The
logits of 1,000 examples of 1,000 tokens, vocabulary 128,000, would take 512 GB; this takes 12 bytes per token.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import datasets
import evaluate
import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import EvalPrediction

from hf_efficient.errors import ModelError

IGNORED_LABEL = -100  # PyTorch's ``ignore_index`` of cross-entropy


class OfflineMetric(evaluate.Metric):
    """An ``evaluate.Metric`` whose class is in this package and whose inputs stay in memory. ``evaluate.Metric`` makes
    a cache folder at once; this class only with ``keep_in_memory=False``, which ``num_process > 1`` needs. Under
    transformers' Trainer predictions are gathered before, so one process is right."""

    _COLUMNS: ClassVar[dict[str, Any]]

    def __init__(self, config_name: str | None = None, keep_in_memory: bool = True, **kwargs: Any) -> None:
        super().__init__(config_name=config_name, keep_in_memory=keep_in_memory, **kwargs)

    def _build_data_dir(self) -> str:
        return self._data_dir_root if self.keep_in_memory else super()._build_data_dir()

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(description="", citation="", features=datasets.Features(self._COLUMNS))


class Perplexity(OfflineMetric):
    """exp(sum of NLL / number of tokens) over all target tokens (F. Jelinek et al., 1977). Every token weighs the same,
    so no grouping into examples or batches matters, unlike in the Trainer's mean of batch means, ``eval_loss``.
    ``nll``: summed over each group of ``tokens``, in nats. Nothing without tokens; inf where exp overflows."""

    _COLUMNS: ClassVar = {"nll": datasets.Value("float64"), "tokens": datasets.Value("int64")}

    def _compute(self, nll: Sequence[float], tokens: Sequence[int]) -> dict[str, float]:
        total = sum(tokens)
        if total == 0:
            return {}
        return {"perplexity": float(torch.tensor(math.fsum(nll) / total, dtype=torch.float64).exp())}


class TokenAccuracy(OfflineMetric):
    """Share of positions where ``predictions[i][t]``, the argmax, equals ``references[i][t]``, -100 left out."""

    _COLUMNS: ClassVar = dict.fromkeys(("predictions", "references"), datasets.List(datasets.Value("int64")))

    def _compute(self, predictions: Sequence[Sequence[int]], references: Sequence[Sequence[int]]) -> dict[str, float]:
        pairs = [pair for rows in zip(predictions, references, strict=True) for pair in zip(*rows, strict=True)]
        right = [predicted == label for predicted, label in pairs if label != IGNORED_LABEL]
        return {"token_accuracy": sum(right) / len(right)} if right else {}


_POSITIONS_AT_ONCE = 1024  # whose logits are in float32 at one time: 512 MiB with a vocabulary of 128,000


class Reduced(NamedTuple):
    """What ``reduce_logits`` returns, made without logits: it passes this on."""

    ids: torch.Tensor
    nll: torch.Tensor


def make_compute_metrics(
    names: Collection[str],
) -> tuple[Callable[..., dict[str, float]] | None, Callable[[Any, Any], Any] | None]:
    """A Trainer's ``(compute_metrics, preprocess_logits_for_metrics)``; Nones where no metric comes from logits.
    ``exact_match`` needs generated answers (``AnswerEvaluator``). Works with ``eval_do_concat_batches`` on and off, and
    with ``batch_eval_metrics``: then once per batch, with the metrics at ``compute_result``."""
    if not {"perplexity", "token_accuracy"} & set(names):
        return None, None
    pending: list[EvalPrediction] = []

    def compute_metrics(prediction: EvalPrediction, compute_result: bool = True) -> dict[str, float]:
        """The metrics, without the Trainer's ``eval_`` prefix; a metric of no target token is left out.
        ``prediction.predictions`` is the pair ``(ids, nll)`` of ``reduce_logits`` for the whole evaluation set (arrays
        [examples, longest], padded with -100), or a list of such pairs; ``label_ids`` alike."""
        pending.append(prediction)
        if not compute_result:
            return {}
        batches = [batch for each in pending for batch in _target_tokens(each)]
        pending.clear()
        metrics: dict[str, float] = {}
        if "perplexity" in names:
            sums = [float(nll.sum(dtype=np.float64)) for _, nll, _ in batches]
            metrics |= Perplexity().compute(nll=sums, tokens=[len(nll) for _, nll, _ in batches]) or {}
        if "token_accuracy" in names:
            ids, labels = [ids for ids, _, _ in batches], [labels for _, _, labels in batches]
            metrics |= TokenAccuracy().compute(predictions=ids, references=labels) or {}
        return metrics

    return compute_metrics, reduce_logits


@torch.no_grad()
def reduce_logits(outputs: Any, labels: Any) -> Any:
    """What the metrics need of a batch's logits: the most likely token and the label's NLL at every position.
    ``outputs``: the logits [batch, length, vocabulary], a tuple whose first three-dimensional tensor they are, or
    ``Reduced``; ``labels``: [batch, length], -100 where no loss is taken. Returns ``(ids, nll)``, int64 and float32
    [batch, length], **aligned with the labels**: position t holds what the logits at t-1 say. Position 0 holds -100 and
    0; the NLL is 0 where the label is -100. Without labels only ``ids``. Raises ``ModelError``: there are no logits."""
    if isinstance(outputs, Reduced):
        return outputs.ids, outputs.nll
    # A mixture of experts puts its scalar auxiliary loss before the logits, others put caches and states after.
    held = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    logits = next((one for one in held if isinstance(one, torch.Tensor) and one.ndim == 3), None)
    if logits is None:
        raise ModelError(
            "evaluate.metrics: the model's evaluation returned no logits, which perplexity and token_accuracy "
            "need. Turn off what skips them (train.use_liger_kernel: false), or leave these metrics out."
        )
    ids = torch.full(logits.shape[:2], IGNORED_LABEL, dtype=torch.int64, device=logits.device)
    ids[:, 1:] = logits[:, :-1].argmax(dim=-1)
    if isinstance(labels, (tuple, list)):  # several label names: the first are the token labels
        labels = labels[0] if labels else None
    if labels is None:
        return ids
    nll = torch.zeros(logits.shape[:2], dtype=torch.float32, device=logits.device)
    how: Any = {"ignore_index": IGNORED_LABEL, "reduction": "none"}
    # One row and one stretch of it at a time: a float32 copy of all the logits would double the largest
    # tensor of the evaluation (and in a padding-free batch the one row is the whole batch).
    for row, (said, wanted) in enumerate(zip(logits[:, :-1], labels[:, 1:].to(logits.device), strict=True)):
        stretches = zip(said.split(_POSITIONS_AT_ONCE), wanted.split(_POSITIONS_AT_ONCE), strict=True)
        nll[row, 1:] = torch.cat([cross_entropy(some.float(), right, **how) for some, right in stretches])
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


def _target_tokens(prediction: EvalPrediction) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """``(ids, nll, labels)`` of every batch, each only where a loss is taken."""
    held: tuple[Any, Any] = (prediction.predictions, prediction.label_ids)
    batches = zip(*held, strict=True) if isinstance(held[0], list) else [held]  # a list: eval_do_concat_batches=False
    for predictions, its_labels in batches:
        its_labels = its_labels[0] if isinstance(its_labels, (tuple, list)) else its_labels
        ids, nll, labels = (torch.as_tensor(one).cpu().numpy() for one in (*predictions, its_labels))
        counted = labels != IGNORED_LABEL
        counted[:, 0] = False
        yield ids[counted], nll[counted], labels[counted]
