"""Evaluations too often, or too slow."""

from __future__ import annotations

from typing import Any

from hf_efficient.diagnosis.isolated.rule import SOURCE, clear, cost, gain, part_evidence, share_of, unknown
from hf_efficient.diagnosis.pauses import distance
from hf_efficient.records.findings import Abstention, Evidence, Finding, Remedy
from hf_efficient.records.isolation import Isolation
from hf_efficient.units import share

__all__ = ["evaluations_cost"]

_TOO_MUCH = 0.10
_ALLOWED = 0.05


def evaluations_cost(found: Isolation) -> Finding | Abstention | None:
    """A tenth of the loop or more would be spent in evaluations; rarer ones are to take a twentieth."""
    part, each = clear(found, "evaluation"), found.pauses.evaluation_seconds
    if part is None or part.seconds is None or each is None or share_of(found, part.seconds) < _TOO_MUCH:
        return unknown(found, "evaluations_cost", "evaluation")
    every = found.schedule.evaluate_every
    assert every is not None
    longer = distance(each, found.step_seconds - part.seconds, _ALLOWED)
    overrides: dict[str, Any] = {"train.eval_strategy": "steps", "train.eval_steps": longer}
    if found.schedule.best_at_end:
        overrides |= {"train.save_strategy": "steps", "train.save_steps": longer}
    saved = part.seconds - each / longer
    evidence = [
        Evidence("an evaluation", each, "seconds", f"{SOURCE}: pauses"),
        Evidence("steps between two", every, "count", "recipe"),
        *part_evidence(found, part, "evaluations, of each step"),
    ]
    basis = f"evaluations after every {longer} steps, each as long as those that were timed"
    remedies = [
        Remedy(f"evaluate every {longer} steps", overrides, "the loss is seen less often", gain(found, saved, basis))
    ]
    return Finding(
        rule="evaluations_cost",
        title=f"{share(share_of(found, part.seconds))} of the training loop goes to evaluations",
        severity="warning",
        confidence="measured",
        evidence=evidence,
        cost=cost(found, part.seconds),
        remedies=remedies if longer > every else [],
    )
