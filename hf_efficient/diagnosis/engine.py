"""All rules over one run: their findings ranked, and the limit of a run that has none.

Findings out of a recipe's variants: one rule, one file, named as the rules over runs where they find the same.

A rule takes an ``Isolation`` and returns a ``Finding``, an ``Abstention`` where a variant that it rests on failed, or
None. Costs and gains are of the whole run of the recipe, an estimate from the step that was measured.

All rules over the variants of one recipe.

What can be wrong with a trace alone: one rule, one file. Costs and gains are of the traced time.

What is wrong with a trace, of whatever run: findings from its breakdown alone.

The diagnosis of a run by the name of its folder, and its file.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

from hf_efficient.accounting.account import records_folder
from hf_efficient.accounting.run_records import RunReader
from hf_efficient.diagnosis.case import Case, read_case
from hf_efficient.diagnosis.confirmation import confirmations
from hf_efficient.diagnosis.limit import limit_of
from hf_efficient.diagnosis.remedies import with_global_batch
from hf_efficient.diagnosis.rule import IsolatedRule, Rule, TraceRule
from hf_efficient.diagnosis.rules import RULES
from hf_efficient.diagnosis.rules.batching import small_micro_batch_small_micro_batch as small_micro_batch
from hf_efficient.diagnosis.rules.data import few_workers_few_workers as few_workers
from hf_efficient.diagnosis.rules.pauses import evaluations_cost_evaluations_cost as evaluations_cost
from hf_efficient.diagnosis.rules.pauses import logging_cost_logging_cost as logging_cost
from hf_efficient.diagnosis.rules.pauses import saves_cost_saves_cost as saves_cost
from hf_efficient.diagnosis.rules.traces import (
    trace_exposed_communication,
    trace_float32_products,
    trace_host_bound,
    trace_launch_bound,
    trace_memory_bound,
    trace_pageable_copies,
    trace_synchronisations,
)
from hf_efficient.records.findings import (
    DIAGNOSIS_SCHEMA_VERSION,
    Abstention,
    Confidence,
    Confirmation,
    Diagnosis,
    Finding,
    Limit,
)
from hf_efficient.records.isolation import Isolation
from hf_efficient.records.trace import TraceBreakdown
from hf_efficient.run_dir.json_file import read_record, strict_json, write_whole
from hf_efficient.text import share
from hf_efficient.version import __version__

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


ISOLATED_RULES: tuple[IsolatedRule, ...] = (
    few_workers,
    evaluations_cost,
    saves_cost,
    logging_cost,
    small_micro_batch,
)


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


TRACE_RULES: tuple[TraceRule, ...] = (
    trace_host_bound,
    trace_launch_bound,
    trace_exposed_communication,
    trace_pageable_copies,
    trace_synchronisations,
    trace_memory_bound,
    trace_float32_products,
)


def findings_of_trace(breakdown: TraceBreakdown) -> list[Finding]:
    """Of its busiest device, the most important first; none where the trace has no events of any device.

    Costs and gains are of the device's traced time, from its first event to its last.
    """
    if not breakdown.devices:
        return []
    device = max(breakdown.devices, key=lambda one: one.busy.busy_seconds)
    found = [rule(breakdown, device) for rule in TRACE_RULES]
    return ranked([one for one in found if one is not None])


DIAGNOSIS_JSON = "diagnosis.json"


def diagnose(run_dir: str | Path) -> Diagnosis:
    """What is wrong with a run, what to change, and what that would give.

    Args:
        run_dir: output directory of a run, or its ``efficiency`` folder; the run may go on, have ended or died.

    Raises:
        OutputError: there is no such folder, no record in it, they cannot be read, or are of a newer version.
    """
    return diagnose_case(read_case(records_folder(run_dir)))


def to_json(diagnosis: Diagnosis) -> str:
    """As strict JSON, indented, with a newline at its end."""
    return strict_json(diagnosis)


def write_diagnosis(directory: Path, reader: RunReader | None = None) -> Diagnosis:
    """Diagnose the run whose records lie in a folder, and put ``diagnosis.json`` beside them.

    Args:
        directory: the ``efficiency`` folder of the run.
        reader: one that has read the records before, so that only what is new is read.

    Raises:
        OutputError: there are no records, or they cannot be read.
        OSError: the file cannot be written; one that was there stays as it is.
    """
    found = diagnose_case(read_case(directory, reader))
    write_whole(directory / DIAGNOSIS_JSON, to_json(found))
    return found


def read_diagnosis(path: Path) -> Diagnosis:
    """What ``write_diagnosis`` wrote.

    Raises:
        OutputError: the file cannot be read, is no diagnosis, or was written by a newer version.
    """
    return read_record(path, Diagnosis, DIAGNOSIS_SCHEMA_VERSION, "a diagnosis")
