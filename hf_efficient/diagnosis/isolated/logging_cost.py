"""Logs too often, or too slow."""

from __future__ import annotations

from hf_efficient.diagnosis.isolated.rule import SOURCE, clear, cost, gain, part_evidence, share_of, unknown
from hf_efficient.diagnosis.pauses import distance
from hf_efficient.diagnosis.rule import MATTERS
from hf_efficient.records.findings import Abstention, Evidence, Finding, Remedy
from hf_efficient.records.isolation import Isolation
from hf_efficient.units import share

__all__ = ["logging_cost"]

_ALLOWED = 0.01


def logging_cost(found: Isolation) -> Finding | Abstention | None:
    """A twentieth of the step or more goes to logs; rarer ones are to take a hundredth."""
    part, each = clear(found, "logging"), found.pauses.log_seconds
    if part is None or part.seconds is None or each is None or share_of(found, part.seconds) < MATTERS:
        return unknown(found, "logging_cost", "logging")
    every = found.schedule.log_every
    assert every is not None
    longer = distance(each, found.step_seconds - part.seconds, _ALLOWED)
    overrides = {"train.logging_strategy": "steps", "train.logging_steps": longer}
    basis = f"a log after every {longer} steps, each as long as those that were measured"
    saved = gain(found, part.seconds - each / longer, basis)
    return Finding(
        rule="logging_cost",
        title=f"{share(share_of(found, part.seconds))} of a step goes to logging",
        severity="warning",
        confidence="measured",
        evidence=[
            Evidence("a log", each, "seconds", f"{SOURCE}: logged less quiet"),
            Evidence("steps between two", every, "count", "recipe"),
            *part_evidence(found, part, "logs, of each step"),
        ],
        cost=cost(found, part.seconds),
        remedies=[Remedy(f"log every {longer} steps", overrides, "a coarser curve of the loss", saved)],
    )
