"""What is wrong with a run, how that is known, and what to change.

What the trace of a run's profiler tells.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hf_efficient.records.findings import Diagnosis, Evidence, Finding, Remedy
from hf_efficient.records.trace import DeviceBreakdown, TraceBreakdown
from hf_efficient.reporting.diagnosis import (
    GAINS_OVERLAP,
    NOTHING_TO_FIX,
    VERDICTS,
    several_gains,
    told_argument,
    told_change,
    told_confirmation,
    told_cost,
    told_fault,
    told_gain,
    told_instrument,
    told_limit,
)
from hf_efficient.reporting.html.render import Section
from hf_efficient.reporting.labels import evidence_value
from hf_efficient.reporting.plots.figure import Figure
from hf_efficient.reporting.plots.findings import finding_figure
from hf_efficient.reporting.plots.time import device_color, device_time_bar, family_bar, family_color
from hf_efficient.reporting.run_data import RunData
from hf_efficient.reporting.trace_tables import (
    TraceTable,
    communication_line,
    copy_table,
    device_time_table,
    device_title,
    family_table,
    gap_table,
    kernel_table,
    launch_lines,
    operator_table,
    step_table,
    sync_table,
    trace_title,
)

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


_MOST_ROWS = 12


@dataclass(frozen=True)
class ShownTable:
    """A table, with the colours of its rows where a figure stands above it.

    Attributes:
        table: its cells.
        colors: by row; empty without a figure.
        figure: above it.
    """

    table: TraceTable
    colors: list[str] = field(default_factory=list)
    figure: Figure | None = None


@dataclass(frozen=True)
class TracePart:
    """A device, or the host.

    Attributes:
        title: its heading.
        tables: in order.
        lines: about kernels and communication.
    """

    title: str
    tables: list[ShownTable]
    lines: list[str] = field(default_factory=list)


def trace_section(run: RunData) -> Section | None:
    """Where the time of its first trace went; None where the run left none."""
    held = run.trace
    if held is None:
        return None
    command = f"hf-efficient diagnose {shlex.quote(held.path)}"
    context: dict[str, object] = {"why": held.why, "command": command, "others": held.others, "parts": []}
    if held.breakdown is None:
        return Section("trace", "Trace", context={**context, "title": held.name, "remarks": []})
    trace = held.breakdown
    parts = [*map(_device, trace.devices), *_host(trace)]
    figures = [shown.figure for part in parts for shown in part.tables if shown.figure is not None]
    context |= {"title": trace_title(trace, held.name), "remarks": list(trace.remarks), "parts": parts}
    return Section("trace", "Trace", list(figures), context)


def _device(device: DeviceBreakdown) -> TracePart:
    name = f"trace-families-{device.device}"
    tables = [
        _colored(device_time_table(device, "device time"), device_color, device_time_bar(device)),
        _colored(
            family_table(device.families, "kernels, copies and memsets by family", "count"),
            family_color,
            family_bar(device.families, name, "Work by family") if device.families else None,
        ),
        ShownTable(kernel_table(device.kernels, _MOST_ROWS)),
    ]
    if device.copies:
        tables.append(ShownTable(copy_table(device.copies)))
    if device.gaps:
        tables.append(ShownTable(gap_table(device.gaps, _MOST_ROWS)))
    lines = [*launch_lines(device.launches), *communication_line(device.communication)]
    return TracePart(_capital(device_title(device)), tables, lines)


def _host(trace: TraceBreakdown) -> list[TracePart]:
    tables = []
    if trace.host is not None and not trace.devices and trace.host.families:
        families = trace.host.families
        figure = family_bar(families, "trace-families-host", "Operators by family")
        tables.append(_colored(family_table(families, "operators by family", "calls"), family_color, figure))
    if trace.host is not None:
        tables.append(ShownTable(operator_table(trace.host, _MOST_ROWS)))
    if trace.syncs:
        tables.append(ShownTable(sync_table(trace.syncs, _MOST_ROWS)))
    if trace.steps:
        tables.append(ShownTable(step_table(trace.steps, _MOST_ROWS)))
    return [TracePart("Host", tables)] if tables else []


def _colored(table: TraceTable, color_of: Callable[[str], str], figure: Figure | None) -> ShownTable:
    return ShownTable(table, [color_of(row[0]) for row in table.rows], figure)


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"
