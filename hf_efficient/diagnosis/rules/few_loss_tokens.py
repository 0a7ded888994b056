"""Updates that learn from a handful of tokens."""

from __future__ import annotations

import math

import numpy as np

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy

__all__ = ["few_loss_tokens"]

_A_HANDFUL = 32
_ENOUGH = 512
_MOST_TIMES = 16


def few_loss_tokens(case: Case) -> Verdict:
    """Half of the updates or more learn from fewer than 32 tokens, over all ranks: their gradients are mostly noise."""
    if case.first is None:
        return abstains("few_loss_tokens", NO_STEPS)
    known = case.first.loss_bearing[np.isfinite(case.first.loss_bearing)]
    if not len(known):
        return abstains("few_loss_tokens", "tokens that bear loss are not counted", "EfficientTrainerMixin")
    ranks = max(1, len(case.account.ranks))
    tokens = float(np.median(known)) * ranks
    if tokens >= _A_HANDFUL:
        return None
    times = min(_MOST_TIMES, 2 ** max(1, math.ceil(math.log2(_ENOUGH / max(tokens, 1)))))
    accumulated = int(case.argument("gradient_accumulation_steps") or 1)
    remedy = Remedy(
        f"accumulate {times} times as many micro-batches for an update",
        {"train.gradient_accumulation_steps": accumulated * times},
        "an epoch has fewer updates; the learning rate may want to grow",
    )
    return Finding(
        rule="few_loss_tokens",
        title=f"an update learns from {tokens:.0f} tokens",
        severity="warning",
        confidence="likely",
        evidence=[
            Evidence(
                "tokens that bear loss in an update", tokens, "tokens", "steps.jsonl: tokens.loss_bearing, median"
            ),
            Evidence("gradient accumulation", accumulated, "count", "spans.jsonl: settings.arguments"),
        ],
        remedies=[remedy],
    )
