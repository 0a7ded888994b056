"""Attention computed operator by operator, where a fused kernel is at hand."""

from __future__ import annotations

from hf_efficient.diagnosis.attention_time import AttentionTime, attention_time
from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.rule import MATTERS, NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.units import share

__all__ = ["attention_kernel"]

_SHORTEST_ON_CPU = 768
_PADDED = 0.02
_SAVED = {(True, False): 0.8, (True, True): 0.7, (False, False): 0.7, (False, True): 0.5}
"""Of eager attention's time, by (CUDA, padded rows).

CPU: measured on one core in float32, four heads of 64, forward and backward, torch 2.13, 2026-11-20: 1 x 2048 tokens
359 ms eager, 100 ms causal, 172 ms with a mask; 2 x 1024: 181, 62, 85; 4 x 512: 48, 43, 44: shorter rows gain nothing.
CUDA: an estimate, FlashAttention-2's figures (arXiv 2307.08691, figure 4) are 3 to 10 times those of eager attention.
"""


def attention_kernel(case: Case) -> Verdict:
    """The model's attention is ``eager``, whose scores are written to memory whole."""
    first = case.first
    if first is None:
        return abstains("attention_kernel", NO_STEPS)
    if case.settings("model").get("attention") != "eager":
        return None
    rows, positions = float(first.rows.sum()), float(first.processed.sum())
    if not rows > 0 or not positions > 0:
        return abstains("attention_kernel", "the length of the rows is not known", "EfficientTrainerMixin")
    length = float((first.processed**2 / first.rows).sum() / positions)
    if not case.on_cuda and length < _SHORTEST_ON_CPU:
        return None
    found = attention_time(case)
    if found is None:
        why = "attention is eager; its part of the time cannot be told"
        return abstains("attention_kernel", why, "efficiency.profile.trace")
    return _finding(case, found, length)


def _finding(case: Case, found: AttentionTime, length: float) -> Finding | None:
    first = case.first
    assert first is not None
    padded = (case.account.tokens.padding_share or 0.0) >= _PADDED
    taken = found.share * float(first.compute_seconds.sum()) / float(first.wall_seconds.sum()) * case.loop_seconds
    part = _SAVED[case.on_cuda, padded]
    saved = part * taken
    if case.share(saved) < MATTERS:
        return None
    basis = f"fused attention takes {share(1 - part)} of eager attention's time on rows such as these; its time: "
    remedy = Remedy(
        "take torch's fused attention",
        {"model.attn_implementation": "sdpa"},
        "none: the same attention, in another order of sums",
        case.gain(saved, basis + found.basis),
    )
    return Finding(
        rule="attention_kernel",
        title=f"attention is eager and takes {share(case.share(taken))} of the loop on rows of {length:,.0f} tokens",
        severity="warning",
        confidence="likely",
        evidence=[
            Evidence("attention implementation", "eager", "", "spans.jsonl: settings.model.attention"),
            Evidence("attention, as part of forward and backward", found.share, "share", found.source),
            Evidence("length of a row, weighted by its tokens", length, "tokens", "steps.jsonl: tokens, sequences"),
        ],
        cost=case.cost(taken),
        remedies=[remedy],
    )
