"""Labels that are mostly masked."""

from __future__ import annotations

import numpy as np

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.units import share

__all__ = ["masked_labels"]

_MOSTLY = 0.05
_OFTEN = 0.05


def masked_labels(case: Case) -> Verdict:
    """Of the tokens that are computed a twentieth or less is learnt from, or a twentieth of the steps has none."""
    if case.first is None:
        return abstains("masked_labels", NO_STEPS)
    tokens, counts = case.account.tokens, case.first.loss_bearing
    if tokens.loss_bearing is None or not tokens.non_padding:
        return abstains("masked_labels", "tokens that bear loss are not counted", "EfficientTrainerMixin")
    learnt = tokens.loss_bearing / tokens.non_padding
    empty = float((counts[np.isfinite(counts)] == 0).mean())
    if learnt >= _MOSTLY and empty < _OFTEN:
        return None
    evidence = [
        Evidence("tokens with a label", learnt, "share", "run.json: tokens.loss_bearing over non_padding"),
        Evidence("steps without a label", empty, "share", "steps.jsonl: tokens.loss_bearing"),
    ]
    prepared = case.facts.get("data", {})
    if prepared.get("examples"):
        wholly = int(prepared.get("masked") or 0)
        evidence.append(Evidence("examples without a label", wholly, "count", "spans.jsonl: data.masked"))
        cut = int(prepared.get("truncated") or 0)
        evidence.append(Evidence("examples that were cut", cut, "count", "spans.jsonl: data.truncated"))
    title = f"only {share(learnt)} of the tokens bear loss: the labels are mostly masked"
    if empty >= _OFTEN:
        title = f"{share(empty)} of the steps hold no token that bears loss"
    what = (
        "look at a batch: labels != -100 where the answer is; usual causes are a response template that does not match "
        "the chat template, prompts that fill max_length so that the answer is cut, and padding sides"
    )
    return Finding(
        rule="masked_labels",
        title=title,
        severity="critical" if empty >= _OFTEN else "warning",
        confidence="measured" if empty >= _OFTEN else "likely",
        evidence=evidence,
        remedies=[Remedy(what)],
        explains=["few_loss_tokens"],
    )
