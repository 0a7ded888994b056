"""A diagnosis on a terminal: what was found, how it is known, what it costs, and what to change."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hf_efficient.records.confirmation import Confirmation
from hf_efficient.records.findings import Diagnosis, Evidence, Finding, Remedy
from hf_efficient.report.confirmation_words import VERDICTS, told_confirmation
from hf_efficient.report.diagnosis_words import (
    GAINS_OVERLAP,
    NOTHING_TO_FIX,
    OF_THE_LOOP,
    several_gains,
    told_abstentions,
    told_change,
    told_cost,
    told_fault,
    told_gain,
    told_limit,
)
from hf_efficient.report.numbers import evidence_value

__all__ = ["diagnosis_hint", "diagnosis_renderables", "finding_renderables"]

_STYLES = {"critical": "bold red", "warning": "bold yellow", "info": "bold"}
_VERDICTS = {"confirmed": "bold green", "larger": "bold green", "smaller": "bold yellow", "retracted": "bold red"}


def diagnosis_renderables(diagnosis: Diagnosis, *, evidence: bool = True) -> list[RenderableType]:
    """What to print, in order: what became of the prediction that the run tests, the findings, the limit of a run
    without any, and what could not be judged.

    Args:
        diagnosis: of a run.
        evidence: False for a short form, to stand below the run's account: a line per finding and its first remedy.
    """
    return [
        *(_end(diagnosis) if evidence else []),
        *(_confirmation(held) for held in diagnosis.confirmations),
        *_headline(diagnosis, evidence),
        *finding_renderables(diagnosis.findings, evidence=evidence),
        *([Text(GAINS_OVERLAP, "dim")] if evidence and several_gains(diagnosis) else []),
        *(_abstentions(diagnosis) if evidence else []),
        *(Text(told_fault(fault), "red") for fault in diagnosis.faults),
    ]


def finding_renderables(
    findings: Sequence[Finding], *, evidence: bool = True, of: str = OF_THE_LOOP
) -> list[RenderableType]:
    """Findings as they are ranked, numbered from 1.

    Args:
        findings: of a run, or of a trace.
        evidence: False for a short form.
        of: what the shares of gains are of.
    """
    return [part for number, one in enumerate(findings, 1) for part in _finding(number, one, evidence, of)]


def diagnosis_hint(diagnosis: Diagnosis | None, directory: str) -> list[RenderableType]:
    """The short form, to stand below an account, and the command for the whole; nothing without a diagnosis.

    Args:
        diagnosis: of the run.
        directory: its output directory.
    """
    if diagnosis is None:
        return []
    more = Text(f"Evidence, other remedies, what was not judged: hf-efficient diagnose {shlex.quote(directory)}", "dim")
    return [Text(""), *diagnosis_renderables(diagnosis, evidence=False), more]


def _end(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    steps = f"{diagnosis.steps} step{'' if diagnosis.steps == 1 else 's'}"
    if diagnosis.ended == "error":
        yield Text(f"The run failed after {steps}: {diagnosis.error}", "bold red")
    elif diagnosis.ended == "stopped":
        yield Text(f"The run stopped {diagnosis.error}.", "bold")
    elif diagnosis.ended == "died":
        yield Text(f"The run did not end: it was killed after {steps}, or goes on.", "bold")


def _confirmation(held: Confirmation) -> Text:
    told = Text(f"{VERDICTS[held.verdict]}: ", _VERDICTS.get(held.verdict, "bold"))
    return told.append(f"{told_confirmation(held)}.", "not bold default")


def _headline(diagnosis: Diagnosis, full: bool) -> Iterator[RenderableType]:
    if diagnosis.limit is not None:
        yield Text(NOTHING_TO_FIX, "bold green")
        yield Text(told_limit(diagnosis))
        yield from (_evidence(diagnosis.limit.evidence) if full and diagnosis.limit.evidence else ())
    elif not diagnosis.findings:
        yield Text(told_limit(diagnosis), "bold")


def _finding(number: int, finding: Finding, full: bool, of: str) -> Iterator[RenderableType]:
    title = Text(f"{number}. {finding.title}", _STYLES[finding.severity])
    title.append(f"  [{finding.severity}, {finding.confidence}: {finding.rule}]", "dim")
    yield title
    told = told_cost(finding.cost)
    if told:
        yield Padding(Text(f"costs {told}"), (0, 0, 0, 3))
    if full:
        yield from _evidence(finding.evidence)
    for remedy in finding.remedies if full else finding.remedies[:1]:
        yield from _remedy(remedy, full, of)


def _evidence(evidence: list[Evidence]) -> Iterator[RenderableType]:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column()
    grid.add_column(justify="right")
    grid.add_column(style="dim")
    for one in evidence:
        grid.add_row(Text(one.what), Text(evidence_value(one.value, one.unit)), Text(one.source))
    yield Padding(grid, (0, 0, 0, 5))


def _remedy(remedy: Remedy, full: bool, of: str) -> Iterator[RenderableType]:
    text = Text(f"-> {remedy.what}")
    if remedy.gain is not None:
        text.append(f": {told_gain(remedy.gain, of)}", "green")
    yield Padding(text, (0, 0, 0, 3))
    for key, value in remedy.overrides.items():
        yield Padding(Text(told_change(key, value), "cyan"), (0, 0, 0, 6))
    if full:
        if remedy.gain is not None:
            yield Padding(Text(f"predicted from: {remedy.gain.basis}", "dim"), (0, 0, 0, 6))
        if remedy.costs:
            yield Padding(Text(f"but: {remedy.costs}", "dim"), (0, 0, 0, 6))


def _abstentions(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    if not diagnosis.abstentions:
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim")
    grid.add_row("Not judged:")
    for told, rules in told_abstentions(diagnosis):
        grid.add_row(Text(f"  {rules}: {told}"))
    yield grid
