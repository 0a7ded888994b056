"""Losses that are no number."""

from __future__ import annotations

import numpy as np

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.units import share

__all__ = ["not_finite_steps"]

_UNLABELLED = 0.5


def not_finite_steps(case: Case) -> Verdict:
    """Micro-batches whose loss is nan or infinite; the Trainer's log leaves them out (``logging_nan_inf_filter``)."""
    if case.first is None:
        return abstains("not_finite_steps", NO_STEPS)
    counted = case.facts.get("silent_failures", {})
    logs = 0 if case.series is None else sum(case.series.steps.not_finite)
    if "losses_not_finite" not in counted and not logs:
        return abstains("not_finite_steps", "losses of micro-batches are not counted", "EfficientTrainerMixin")
    bad, seen = int(counted.get("losses_not_finite") or 0), int(counted.get("losses") or 0)
    if not bad and not logs:
        return None
    unlabelled = int((case.first.loss_bearing == 0).sum())
    evidence = [
        Evidence("losses that are no finite number", bad, "count", "spans.jsonl: silent_failures.losses_not_finite"),
        Evidence("losses of micro-batches", seen, "count", "spans.jsonl: silent_failures.losses"),
        Evidence("logged values that are no finite number", logs, "count", "steps.jsonl: loss, grad_norm"),
        Evidence("steps without a label", unlabelled, "count", "steps.jsonl: tokens.loss_bearing"),
    ]
    what = f"{share(bad / seen)} of the micro-batches have" if bad and seen else "the Trainer logged"
    nameless = unlabelled >= _UNLABELLED * max(bad, 1)
    why = f": {unlabelled} steps hold no label to learn from" if nameless else ""
    return Finding(
        rule="not_finite_steps",
        title=f"{what} a loss that is no number{why}",
        severity="critical",
        confidence="measured",
        evidence=evidence,
        remedies=_remedies(case, nameless, bool(np.nanmax(case.first.micro_batches) > 1)),
        explains=["masked_labels", "few_loss_tokens"] if nameless else [],
    )


def _remedies(case: Case, nameless: bool, accumulates: bool) -> list[Remedy]:
    if nameless:
        found = [Remedy("leave out examples whose labels are all -100: their mean loss is 0 / 0")]
        if not accumulates:
            rows = int(case.argument("per_device_train_batch_size") or 1)
            overrides = {"train.per_device_train_batch_size": 4 * rows}
            found.append(Remedy("more examples in a batch, so that some have labels", overrides, "more memory"))
        return found
    found = [Remedy("find the first such batch: torch.autograd.set_detect_anomaly(True), and look at its rows")]
    if case.argument("fp16") and case.settings("device").get("supports_bf16"):
        overrides = {"train.fp16": False, "train.bf16": True}
        found.insert(0, Remedy("train in bfloat16, whose range is float32's", overrides))
    return found
