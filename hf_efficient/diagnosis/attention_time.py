"""The time of the attention, out of the records alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hf_efficient.diagnosis.case import Case, StepColumns

__all__ = ["AttentionTime", "attention_time"]

_FEWEST = 8
_SPREAD = 0.15
_EXPLAINED = 0.7


@dataclass(frozen=True)
class AttentionTime:
    """Of forward and backward on rank 0.

    Attributes:
        share: of their time.
        basis: how it was told.
        source: the records.
    """

    share: float
    basis: str
    source: str


def attention_time(case: Case) -> AttentionTime | None:
    """What grows with the square of a row's length; None where neither times nor FLOPs tell it.

    By time: forward and backward of the steps over their tokens, and over their tokens times the length of a row: the
    least squares, neither below 0. By FLOPs, without checkpointing: eager attention computes all pairs of a padded row,
    ``a`` FLOPs, of which a causal model needs about ``a (1 - p)^2 / 2`` where a share ``p`` is padding. With ``l`` for
    the rest, computed ``h = l + a``, and the model's ``m = l (1 - p) + a (1 - p)^2 / 2``:

        a = (h - m / (1 - p)) / (1 - (1 - p) / 2) = 2 (h - m / (1 - p)) / (1 + p)

    Hand-worked: h = 100, m = 45, p = 0.25: 2 * (100 - 60) / 1.25 = 64. Check: l = 36, 36 * 0.75 + 64 * 0.5625 / 2 = 45.
    """
    first = case.first
    if first is None:
        return None
    share = _fitted_share(first)
    if share is not None:
        return AttentionTime(share, "the part of the steps' time that grows with the square", "steps.jsonl")
    work, padded = case.account.work, case.account.tokens.padding_share
    checkpointed = case.settings("model").get("activation_checkpointing")
    if not work.hardware_flops or not work.model_flops or padded is None or padded >= 1 or checkpointed:
        return None
    beyond = 1 - work.model_flops / (1 - padded) / work.hardware_flops
    share = min(1.0, max(0.0, 2 * beyond / (1 + padded)))
    return AttentionTime(share, "its share of the FLOPs", "run.json: work")


def _fitted_share(first: StepColumns) -> float | None:
    steady = first.steady
    counts, rows = np.maximum(first.micro_batches[steady], 1), first.rows[steady]
    seconds, tokens = first.compute_seconds[steady] / counts, first.processed[steady] / counts
    with np.errstate(divide="ignore", invalid="ignore"):
        length = first.processed[steady] / rows
    known = np.isfinite(seconds) & np.isfinite(tokens) & np.isfinite(length)
    seconds, tokens, length = seconds[known], tokens[known], length[known]
    if len(seconds) < _FEWEST or length.std() < _SPREAD * length.mean():
        return None
    linear, square = _least_squares(np.stack([tokens, tokens * length], axis=1), seconds)
    fitted = linear * tokens + square * tokens * length
    left = float(((seconds - fitted) ** 2).sum() / ((seconds - seconds.mean()) ** 2).sum())
    if 1 - left < _EXPLAINED:
        return None
    return float((square * tokens * length).sum() / fitted.sum())


def _least_squares(terms: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Neither below 0: where one would be, the other alone."""
    found = np.linalg.lstsq(terms, seconds, rcond=None)[0]
    if (found >= 0).all():
        return float(found[0]), float(found[1])
    alone = [max(0.0, float(term @ seconds / (term @ term))) for term in terms.T]
    errors = [float(((seconds - factor * term) ** 2).sum()) for factor, term in zip(alone, terms.T, strict=True)]
    return (alone[0], 0.0) if errors[0] <= errors[1] else (0.0, alone[1])
