"""All rules over a run, the variants of a recipe or a trace: findings ranked, abstentions, and the limit of what is
healthy."""

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hf_efficient.diagnosis.case import Case, read_case
from hf_efficient.diagnosis.confirmation import confirmations
from hf_efficient.diagnosis.limit import limit_of
from hf_efficient.diagnosis.remedies import for_script, with_global_batch
from hf_efficient.diagnosis.rule import IsolatedRecipe, Rule, S, TracedDevice
from hf_efficient.diagnosis.rules import ISOLATED_RULES, RULES, TRACE_RULES
from hf_efficient.records.findings import DIAGNOSIS_SCHEMA_VERSION, Abstention, Confidence, Diagnosis, Finding, Limit
from hf_efficient.records.isolation import Isolation
from hf_efficient.records.trace import TraceBreakdown
from hf_efficient.run_dir.paths import records_folder
from hf_efficient.text import share
from hf_efficient.version import __version__

logger = logging.getLogger(__name__)
DIAGNOSIS_JSON = "diagnosis.json"
_SEVERITIES = ("critical", "warning", "info")


@dataclass
class _Said:
    """What rules said; a rule that fails is a defect of ours, named in ``faults``, and hides no other."""

    findings: list[Finding] = field(default_factory=list)
    abstentions: list[Abstention] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def _ask(rules: Sequence[Rule[S]], subject: S) -> _Said:
    said = _Said()
    for rule in rules:
        try:
            verdict = rule(subject)
        except Exception as error:
            logger.debug("The rule %s failed.", rule.__name__, exc_info=True)
            said.faults.append(f"{rule.__name__}: {type(error).__name__}: {error}")
            continue
        if isinstance(verdict, Finding):
            said.findings.append(verdict)
        elif verdict is not None:
            said.abstentions.append(verdict)
    return said


def diagnose(run_dir: str | Path) -> Diagnosis:
    """What is wrong with a run, what to change, and what that would give. ``run_dir`` is the output directory of a run,
    or its ``efficiency`` folder; the run may be under way, have ended or died. Raises ``OutputError``: there is no such
    folder, no record in it, they cannot be read, or are of a newer version."""
    return diagnose_case(read_case(records_folder(run_dir)))


def diagnose_case(case: Case, rules: Sequence[Rule[Case]] = RULES) -> Diagnosis:
    """The diagnosis of a run that was read; of a few steps, which start-up outweighs, only what is wrong in itself
    warns."""
    said = _ask(rules, case)
    findings = [with_global_batch(finding, case) for finding in said.findings]
    if case.is_short:
        findings = [_lowered(finding, "possible") for finding in findings]
    ordered = _ranked(findings)
    confirmed = []
    try:
        confirmed = confirmations(case, ordered, said.abstentions)
    except Exception as error:
        logger.debug("The prediction could not be held against the run.", exc_info=True)
        said.faults.append(f"confirmations: {type(error).__name__}: {error}")
    healthy = all(finding.severity == "info" for finding in ordered)
    limit = limit_of(case) if healthy and case.has_steps else None
    abstentions = sorted(said.abstentions, key=lambda one: one.rule)
    if case.recipe is None:
        ordered, abstentions, limit = for_script([ordered, abstentions, limit], case.settings("arguments"))
    return Diagnosis(
        schema_version=DIAGNOSIS_SCHEMA_VERSION,
        hf_efficient_version=__version__,
        ended=case.account.ended,
        error=case.account.error,
        steps=case.account.steps.count,
        loop_seconds=case.loop_seconds,
        findings=ordered,
        abstentions=abstentions,
        limit=limit,
        rules=[rule.__name__ for rule in rules],
        faults=said.faults,
        confirmations=confirmed,
        recipe=case.recipe is not None,
    )


def diagnose_isolation(found: Isolation) -> Diagnosis:
    """Findings out of the variants of a recipe, what costs most first."""
    said = _ask(ISOLATED_RULES, IsolatedRecipe(found))
    return Diagnosis(
        schema_version=DIAGNOSIS_SCHEMA_VERSION,
        hf_efficient_version=__version__,
        ended="done",
        error=None,
        steps=found.steps,
        loop_seconds=found.loop_seconds,
        findings=_ranked(said.findings),
        abstentions=said.abstentions,
        limit=None if said.findings else _isolated_limit(found),
        rules=[rule.__name__ for rule in ISOLATED_RULES],
        faults=said.faults,
    )


def _isolated_limit(found: Isolation) -> Limit:
    parts = [found.part(name) for name in ("forward", "backward_optimizer")]
    known = [part.seconds for part in parts if part is not None and part.seconds is not None]
    if len(known) < 2:
        return Limit("unknown", "the model's own part of a step was not measured")
    model = share(sum(known) / found.step_seconds)
    return Limit("unknown", f"{model} of a step is the model's own forward, backward and update")


def findings_of_trace(breakdown: TraceBreakdown) -> list[Finding]:
    """Of the busiest device of a trace, the most important first; none where it has no events of any device."""
    if not breakdown.devices:
        return []
    device = max(breakdown.devices, key=lambda one: one.busy.busy_seconds)
    return _ranked(_ask(TRACE_RULES, TracedDevice(breakdown, device)).findings)


def _ranked(findings: Sequence[Finding]) -> list[Finding]:
    explained = {name for one in findings if one.severity != "info" for name in one.explains}
    lowered = [_lowered(one) if one.rule in explained else one for one in findings]

    def place(one: Finding) -> tuple[float, ...]:
        cost = one.cost
        return _SEVERITIES.index(one.severity), one.rule in explained, -(cost.seconds or 0.0), -(cost.bytes or 0)

    return sorted(lowered, key=place)


def _lowered(finding: Finding, confidence: Confidence | None = None) -> Finding:
    if finding.severity == "critical":
        return finding
    return dataclasses.replace(finding, severity="info", confidence=confidence or finding.confidence)
