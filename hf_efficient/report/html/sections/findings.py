"""What is wrong with a run, how that is known, and what to change."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from hf_efficient.records.findings import Diagnosis, Evidence, Finding, Remedy
from hf_efficient.report.confirmation_words import VERDICTS, told_confirmation
from hf_efficient.report.diagnosis_words import (
    GAINS_OVERLAP,
    NOTHING_TO_FIX,
    several_gains,
    told_argument,
    told_change,
    told_cost,
    told_fault,
    told_gain,
    told_instrument,
    told_limit,
)
from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.numbers import evidence_value
from hf_efficient.report.plots.figure import Figure
from hf_efficient.report.plots.findings.choose import finding_figure
from hf_efficient.report.run_data import RunData

__all__ = ["ShownFinding", "ShownRemedy", "findings_section"]

_VERDICTS = {"confirmed": "good", "larger": "good", "smaller": "warn", "retracted": "bad"}
_CHIPS = {"critical": "bad", "warning": "warn", "info": "plain-chip"}


@dataclass(frozen=True)
class ShownRemedy:
    """A remedy in words.

    Attributes:
        what: in a sentence.
        lines: of the recipe, or of a script's ``TrainingArguments``; empty where it is no change of these.
        gain: predicted; empty where it is not.
        basis: how it was predicted.
        costs: in other respects.
    """

    what: str
    lines: str
    gain: str
    basis: str
    costs: str


@dataclass(frozen=True)
class ShownFinding:
    """A finding in words.

    Attributes:
        number: its rank, from 1.
        rule, title, severity, confidence: as found.
        chip: how its severity is coloured.
        cost: empty where it is not known.
        evidence: what, figure and source.
        remedies: the best first.
        figure: its evidence, plotted; None where there is nothing to draw.
    """

    number: int
    rule: str
    title: str
    severity: str
    confidence: str
    chip: str
    cost: str
    evidence: list[tuple[str, str, str]]
    remedies: list[ShownRemedy]
    figure: Figure | None


def findings_section(run: RunData) -> Section | None:
    """The findings in their order, or the limit of a run that has none; None where only ``run.json`` was kept."""
    diagnosis = run.diagnosis
    if diagnosis is None:
        return None
    shown = [_finding(number, one, run, diagnosis) for number, one in enumerate(diagnosis.findings, 1)]
    context = {
        "confirmations": [
            (_VERDICTS.get(one.verdict, "plain-chip"), VERDICTS[one.verdict], told_confirmation(one), one.run)
            for one in diagnosis.confirmations
        ],
        "findings": shown,
        "nothing": NOTHING_TO_FIX if diagnosis.limit is not None else "",
        "limit": told_limit(diagnosis),
        "limit_evidence": _evidence(diagnosis.limit.evidence) if diagnosis.limit is not None else [],
        "is_recipe": run.recipe is not None,
        "command": _command(run, diagnosis),
        "abstentions": [(one.rule, one.why, told_instrument(one.instrument)) for one in diagnosis.abstentions],
        "overlap": GAINS_OVERLAP if several_gains(diagnosis) else "",
        "judged": len(diagnosis.rules) - len(diagnosis.abstentions),
        "faults": [told_fault(fault) for fault in diagnosis.faults],
    }
    return Section("findings", "Findings", [one.figure for one in shown if one.figure is not None], context)


def _finding(number: int, finding: Finding, run: RunData, diagnosis: Diagnosis) -> ShownFinding:
    return ShownFinding(
        number=number,
        rule=finding.rule,
        title=f"{finding.title[:1].upper()}{finding.title[1:]}",
        severity=finding.severity,
        confidence=finding.confidence,
        chip=_CHIPS[finding.severity],
        cost=told_cost(finding.cost, diagnosis.loop_seconds),
        evidence=_evidence(finding.evidence),
        remedies=[_remedy(remedy, is_recipe=run.recipe is not None) for remedy in finding.remedies],
        figure=finding_figure(number, finding, run),
    )


def _evidence(evidence: Sequence[Evidence]) -> list[tuple[str, str, str]]:
    return [(one.what, evidence_value(one.value, one.unit), one.source) for one in evidence]


def _remedy(remedy: Remedy, *, is_recipe: bool) -> ShownRemedy:
    told = told_change if is_recipe else told_argument
    return ShownRemedy(
        what=f"{remedy.what[:1].upper()}{remedy.what[1:]}",
        lines="\n".join(told(key, value) for key, value in remedy.overrides.items()),
        gain=told_gain(remedy.gain) if remedy.gain is not None else "",
        basis=remedy.gain.basis if remedy.gain is not None else "",
        costs=remedy.costs,
    )


def _command(run: RunData, diagnosis: Diagnosis) -> str:
    """What writes the recipe with the first remedy that changes one; empty where none does."""
    changed = [n for n, one in enumerate(diagnosis.findings, 1) if any(each.overrides for each in one.remedies)]
    if run.recipe is None or not changed:
        return ""
    return f"hf-efficient diagnose {shlex.quote(run.directory)} --apply next.yaml --finding {changed[0]}"
