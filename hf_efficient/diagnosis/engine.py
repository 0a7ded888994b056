"""All rules over one run: their findings ranked, and the limit of a run that has none."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.confirm import confirmations
from hf_efficient.diagnosis.global_batch import with_global_batch
from hf_efficient.diagnosis.limit import limit_of
from hf_efficient.diagnosis.rule import Rule
from hf_efficient.diagnosis.rules import RULES
from hf_efficient.records.confirmation import Confirmation
from hf_efficient.records.findings import DIAGNOSIS_SCHEMA_VERSION, Abstention, Confidence, Diagnosis, Finding
from hf_efficient.version import __version__

__all__ = ["diagnose_case", "ranked"]

logger = logging.getLogger(__name__)

_SEVERITIES = ("critical", "warning", "info")


def diagnose_case(case: Case, rules: Sequence[Rule] = RULES) -> Diagnosis:
    """Ask every rule; one that fails is a defect of ours, named in the diagnosis, and hides no other.

    Of a run of a few steps nothing is a warning that is not wrong in itself: start-up outweighs everything there.

    Args:
        case: the run.
        rules: in any order.
    """
    findings: list[Finding] = []
    abstentions: list[Abstention] = []
    faults: list[str] = []
    for rule in rules:
        name = rule.__name__
        try:
            said = rule(case)
        except Exception as error:
            logger.debug("The rule %s failed.", name, exc_info=True)
            faults.append(f"{name}: {type(error).__name__}: {error}")
            continue
        if isinstance(said, Finding):
            findings.append(with_global_batch(said, case))
        elif said is not None:
            abstentions.append(said)
    if case.is_short:
        findings = [_lowered(finding, "possible") for finding in findings]
    ordered = ranked(findings)
    confirmed = _confirmations(case, ordered, abstentions, faults)
    healthy = all(finding.severity == "info" for finding in ordered)
    return Diagnosis(
        schema_version=DIAGNOSIS_SCHEMA_VERSION,
        hf_efficient_version=__version__,
        ended=case.account.ended,
        error=case.account.error,
        steps=case.account.steps.count,
        loop_seconds=case.loop_seconds,
        findings=ordered,
        abstentions=sorted(abstentions, key=lambda one: one.rule),
        limit=limit_of(case) if healthy and case.first is not None else None,
        rules=[rule.__name__ for rule in rules],
        faults=faults,
        confirmations=confirmed,
    )


def _confirmations(
    case: Case, findings: Sequence[Finding], abstentions: Sequence[Abstention], faults: list[str]
) -> list[Confirmation]:
    try:
        return confirmations(case, findings, abstentions)
    except Exception as error:
        logger.debug("The prediction could not be held against the run.", exc_info=True)
        faults.append(f"confirmations: {type(error).__name__}: {error}")
        return []


def ranked(findings: Sequence[Finding]) -> list[Finding]:
    """By severity, causes before what they explain, then by cost in time, then in memory."""
    explained = {name for one in findings if one.severity != "info" for name in one.explains}
    lowered = [_lowered(one) if one.rule in explained else one for one in findings]
    return sorted(lowered, key=lambda one: (_SEVERITIES.index(one.severity), one.rule in explained, *_costs(one)))


def _lowered(finding: Finding, confidence: Confidence | None = None) -> Finding:
    """No warning, unless the training is wrong."""
    if finding.severity == "critical":
        return finding
    return dataclasses.replace(finding, severity="info", confidence=confidence or finding.confidence)


def _costs(finding: Finding) -> tuple[float, float]:
    return -(finding.cost.seconds or 0.0), -float(finding.cost.bytes or 0)
