"""Checkpoints too often, or too slow."""

from __future__ import annotations

from typing import Any

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.pauses import pause_evidence, rarer
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Finding, Remedy
from hf_efficient.units import share

__all__ = ["saves_cost"]

_TOO_MUCH = 0.10
_ALLOWED = 0.03


def saves_cost(case: Case) -> Verdict:
    """A tenth of the loop or more is spent in checkpoints; rarer ones are to take three hundredths."""
    if case.first is None:
        return abstains("saves_cost", NO_STEPS)
    spent = case.phase_seconds("checkpointing")
    taken = case.share(spent)
    if taken < _TOO_MUCH:
        return None
    return Finding(
        rule="saves_cost",
        title=f"{share(taken)} of the training loop is spent in checkpoints",
        severity="warning",
        confidence="measured",
        evidence=pause_evidence(case, "checkpointing", "checkpoint"),
        cost=case.cost(spent),
        remedies=_remedies(case, spent),
    )


def _remedies(case: Case, spent: float) -> list[Remedy]:
    found = []
    longer = rarer(case, spent, "save_steps", "save_strategy", _ALLOWED)
    if longer is not None:
        every, left = longer
        overrides: dict[str, Any] = {"train.save_strategy": "steps", "train.save_steps": every}
        if case.argument("load_best_model_at_end"):
            overrides |= {"train.eval_strategy": "steps", "train.eval_steps": every}
        basis = f"a checkpoint after every {every} steps, each as long as those that were measured"
        costs = f"a run that dies has up to {every} steps to do again"
        found.append(Remedy(f"save every {every} steps", overrides, costs, case.gain(spent - left, basis)))
    if case.argument("save_only_model") is False:
        overrides = {"train.save_only_model": True}
        costs = "training cannot go on from such a checkpoint with its optimizer state"
        found.append(Remedy("save the weights without optimizer state", overrides, costs))
    return found
