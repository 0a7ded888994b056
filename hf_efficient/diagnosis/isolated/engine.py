"""All rules over the variants of one recipe."""

from __future__ import annotations

from hf_efficient.diagnosis.isolated import ISOLATED_RULES
from hf_efficient.records.findings import DIAGNOSIS_SCHEMA_VERSION, Abstention, Diagnosis, Finding, Limit
from hf_efficient.records.isolation import Isolation
from hf_efficient.units import share
from hf_efficient.version import __version__

__all__ = ["diagnose_isolation"]


def diagnose_isolation(found: Isolation) -> Diagnosis:
    """Findings, what costs most first.

    Args:
        found: the variants of a recipe, with their attribution.
    """
    said = [rule(found) for rule in ISOLATED_RULES]
    findings = [one for one in said if isinstance(one, Finding)]
    return Diagnosis(
        schema_version=DIAGNOSIS_SCHEMA_VERSION,
        hf_efficient_version=__version__,
        ended="done",
        error=None,
        steps=found.steps,
        loop_seconds=found.loop_seconds,
        findings=sorted(findings, key=lambda one: -(one.cost.seconds or 0.0)),
        abstentions=[one for one in said if isinstance(one, Abstention)],
        limit=None if findings else _limit(found),
        rules=[rule.__name__ for rule in ISOLATED_RULES],
    )


def _limit(found: Isolation) -> Limit:
    parts = {name: part.seconds for name in ("forward", "backward_optimizer") if (part := found.part(name)) is not None}
    known = [seconds for seconds in parts.values() if seconds is not None]
    if len(known) < 2:
        return Limit("unknown", "the model's own part of a step was not measured")
    model = share(sum(known) / found.step_seconds)
    return Limit("unknown", f"{model} of a step is the model's own forward, backward and update")
