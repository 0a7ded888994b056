"""Perplexity: exp of the mean negative log-likelihood of a token."""

from __future__ import annotations

import math
from collections.abc import Sequence

import datasets
import evaluate

from hf_efficient.metrics.offline import OfflineMetric

__all__ = ["Perplexity"]

# exp(709.78...) is the largest that a 64-bit float holds.
_LARGEST_EXPONENT = 709.0


class Perplexity(OfflineMetric):
    """exp(sum of NLL / number of tokens) over all loss-bearing tokens.

    Every token weighs the same, so the value depends neither on how tokens are grouped into examples nor on
    how examples are grouped into batches. (The mean of per-batch mean losses, which is what a Trainer reports
    as ``eval_loss``, does depend on both.)
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="exp of the token-weighted mean negative log-likelihood of the loss-bearing tokens.",
            citation="F. Jelinek et al., Perplexity: a measure of the difficulty of speech tasks, 1977.",
            inputs_description=(
                "\nnll: list of float, summed negative log-likelihood, in nats, of a group of tokens."
                "\ntokens: list of int, how many tokens each sum is over; groups may differ in size."
                "\nReturns {'perplexity': float}; {} where there are no tokens; inf where exp overflows."
            ),
            features=datasets.Features({"nll": datasets.Value("float64"), "tokens": datasets.Value("int64")}),
        )

    def _compute(self, nll: Sequence[float], tokens: Sequence[int]) -> dict[str, float]:
        total = sum(tokens)
        if total == 0:
            return {}
        mean = math.fsum(nll) / total
        return {"perplexity": math.inf if mean > _LARGEST_EXPONENT else math.exp(mean)}
