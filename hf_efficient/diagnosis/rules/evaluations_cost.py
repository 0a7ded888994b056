"""Evaluations too often, or too slow."""

from __future__ import annotations

from typing import Any

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.pauses import pause_evidence, rarer
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Finding, Remedy
from hf_efficient.units import share, short_seconds

__all__ = ["evaluations_cost"]

_TOO_MUCH = 0.10
_ALLOWED = 0.05


def evaluations_cost(case: Case) -> Verdict:
    """A tenth of the loop or more is spent in evaluations; rarer ones are to take a twentieth."""
    if case.first is None:
        return abstains("evaluations_cost", NO_STEPS)
    spent = case.phase_seconds("evaluation")
    taken = case.share(spent)
    if taken < _TOO_MUCH:
        return None
    return Finding(
        rule="evaluations_cost",
        title=f"{share(taken)} of the training loop is spent in evaluations",
        severity="warning",
        confidence="measured",
        evidence=pause_evidence(case, "evaluation", "evaluation"),
        cost=case.cost(spent),
        remedies=_remedies(case, spent),
    )


def _remedies(case: Case, spent: float) -> list[Remedy]:
    found = []
    longer = rarer(case, spent, "eval_steps", "eval_strategy", _ALLOWED)
    if longer is not None:
        every, left = longer
        overrides: dict[str, Any] = {"train.eval_strategy": "steps", "train.eval_steps": every}
        if case.argument("load_best_model_at_end"):
            overrides |= {"train.save_strategy": "steps", "train.save_steps": every}
        basis = f"evaluations after every {every} steps, each as long as those that were measured"
        gain = case.gain(spent - left, basis)
        found.append(Remedy(f"evaluate every {every} steps", overrides, "the loss is seen less often", gain))
    batch, train_batch = (case.argument(f"per_device_{kind}_batch_size") for kind in ("eval", "train"))
    if case.on_cuda and batch and train_batch and batch < train_batch:
        overrides = {"train.per_device_eval_batch_size": 2 * train_batch}
        found.append(Remedy("evaluate in larger batches", overrides, "more memory in evaluations"))
    examples = case.recipe.get("data.max_eval_examples") if case.recipe is not None else None
    if case.recipe is not None and examples is None and case.evaluations:
        mean = short_seconds(sum(pause.seconds for pause in case.evaluations) / len(case.evaluations))
        what = f"evaluate on fewer examples (data.max_eval_examples); one evaluation takes {mean}"
        found.append(Remedy(what, costs="a noisier evaluation loss"))
    return found
