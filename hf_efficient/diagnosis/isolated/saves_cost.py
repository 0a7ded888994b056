"""Checkpoints too often, or too slow."""

from __future__ import annotations

from typing import Any

from hf_efficient.diagnosis.isolated.rule import SOURCE, clear, cost, gain, part_evidence, share_of, unknown
from hf_efficient.diagnosis.pauses import distance
from hf_efficient.records.findings import Abstention, Evidence, Finding, Remedy
from hf_efficient.records.isolation import Isolation
from hf_efficient.units import share

__all__ = ["saves_cost"]

_TOO_MUCH = 0.10
_ALLOWED = 0.03


def saves_cost(found: Isolation) -> Finding | Abstention | None:
    """A tenth of the loop or more would be spent in checkpoints; rarer ones are to take three hundredths."""
    part, each = clear(found, "checkpointing"), found.pauses.save_seconds
    if part is None or part.seconds is None or each is None or share_of(found, part.seconds) < _TOO_MUCH:
        return unknown(found, "saves_cost", "checkpointing")
    every = found.schedule.save_every
    assert every is not None
    longer = distance(each, found.step_seconds - part.seconds, _ALLOWED)
    overrides: dict[str, Any] = {"train.save_strategy": "steps", "train.save_steps": longer}
    if found.schedule.best_at_end:
        overrides |= {"train.eval_strategy": "steps", "train.eval_steps": longer}
    basis = f"a checkpoint after every {longer} steps, each as long as those that were timed"
    costs = f"a run that dies has up to {longer} steps to do again"
    remedy = Remedy(f"save every {longer} steps", overrides, costs, gain(found, part.seconds - each / longer, basis))
    return Finding(
        rule="saves_cost",
        title=f"{share(share_of(found, part.seconds))} of the training loop goes to checkpoints",
        severity="warning",
        confidence="measured",
        evidence=[
            Evidence("a checkpoint", each, "seconds", f"{SOURCE}: pauses"),
            Evidence("steps between two", every, "count", "recipe"),
            *part_evidence(found, part, "checkpoints, of each step"),
        ],
        cost=cost(found, part.seconds),
        remedies=[remedy] if longer > every else [],
    )
