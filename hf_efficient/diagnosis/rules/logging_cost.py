"""Logs too often, or to somebody slow."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.pauses import rarer
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.units import share, short_seconds

__all__ = ["logging_cost"]

_TOO_MUCH = 0.05
_ALLOWED = 0.01


def logging_cost(case: Case) -> Verdict:
    """A twentieth of the loop or more goes into logs; rarer ones are to take a hundredth."""
    first = case.first
    if first is None:
        return abstains("logging_cost", NO_STEPS)
    if "logging" not in first.phase_seconds and "between_steps" in first.phase_seconds:
        return abstains("logging_cost", "logging is not told from fetching data", "EfficientTrainerMixin")
    spent = case.phase_seconds("logging")
    if case.share(spent) < _TOO_MUCH:
        return None
    logs = first.phase("logging")
    times = int((logs > 0).sum())
    each = float(logs.sum()) / times
    remedies = []
    longer = rarer(case, spent, "logging_steps", "logging_strategy", _ALLOWED)
    if longer is not None and case.argument("logging_strategy") == "steps":
        every, left = longer
        basis = f"a log after every {every} steps, each as long as those that were measured"
        overrides = {"train.logging_steps": every}
        gain = case.gain(spent - left, basis)
        remedies.append(Remedy(f"log every {every} steps", overrides, "the loss is told less often", gain))
    remedies.append(
        Remedy("look at who is told (train.report_to, callbacks with on_log): a slow tracker holds every log")
    )
    return Finding(
        rule="logging_cost",
        title=f"{share(case.share(spent))} of the training loop goes into logs, {short_seconds(each)} each",
        severity="warning",
        confidence="measured",
        evidence=[
            Evidence("share of the loop in logs", case.share(spent), "share", "steps.jsonl: phase_seconds.logging"),
            Evidence("time in logs", spent, "seconds", "steps.jsonl: phase_seconds.logging"),
            Evidence("steps with a log", times, "count", "steps.jsonl: phase_seconds.logging"),
        ],
        cost=case.cost(spent),
        remedies=remedies,
    )
