"""Sections of a run's page about causes: the findings with their remedies, the trace of its profiler, its profiles."""

import shlex
from collections.abc import Sequence
from typing import Any

from hf_efficient.records.findings import Diagnosis, Evidence, Finding, Remedy
from hf_efficient.records.trace import DeviceBreakdown, TraceBreakdown
from hf_efficient.reporting import diagnosis as words
from hf_efficient.reporting import trace_tables
from hf_efficient.reporting.html.render import Section
from hf_efficient.reporting.labels import evidence_value
from hf_efficient.reporting.plots.figure import Figure
from hf_efficient.reporting.plots.findings import finding_figure
from hf_efficient.reporting.plots.time import device_color, device_time_bar, family_bar, family_color
from hf_efficient.reporting.profile_tables import found_tables, instrument_rows, shared_remark
from hf_efficient.reporting.run_data import RunData
from hf_efficient.reporting.terminal import FoundTable

_MOST_TRACE_ROWS = 12
_MOST_PROFILE_ROWS = 25
_CHIPS = {"confirmed": "good", "larger": "good", "smaller": "warn", "retracted": "bad"}
_SEVERITY_CHIPS = {"critical": "bad", "warning": "warn", "info": "plain-chip"}


def findings_section(run: RunData) -> Section | None:
    diagnosis = run.diagnosis
    if diagnosis is None:
        return None
    shown = [_finding(number, one, run, diagnosis) for number, one in enumerate(diagnosis.findings, 1)]
    context = {
        "confirmations": [
            (_CHIPS.get(one.verdict, "plain-chip"), words.VERDICTS[one.verdict], words.confirmation_words(one), one.run)
            for one in diagnosis.confirmations
        ],
        "findings": shown,
        "nothing": words.nothing_to_fix(diagnosis),
        "limit": words.limit_words(diagnosis),
        "limit_evidence": _evidence(diagnosis.limit.evidence) if diagnosis.limit is not None else [],
        "is_recipe": run.recipe is not None,
        "command": _command(run, diagnosis),
        "abstentions": [(one.rule, one.why, words.instrument_words(one.instrument)) for one in diagnosis.abstentions],
        "overlap": words.GAINS_OVERLAP if words.several_gains(diagnosis) else "",
        "judged": len(diagnosis.rules) - len(diagnosis.abstentions),
        "faults": [words.fault_words(fault) for fault in diagnosis.faults],
    }
    return Section("findings", "Findings", [one["figure"] for one in shown if one["figure"] is not None], context)


def _finding(number: int, finding: Finding, run: RunData, diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "number": number,
        "found": finding,
        "chip": _SEVERITY_CHIPS[finding.severity],
        "cost": words.cost_words(finding.cost, diagnosis.loop_seconds),
        "evidence": _evidence(finding.evidence),
        "remedies": [_remedy(remedy, is_recipe=run.recipe is not None) for remedy in finding.remedies],
        "figure": finding_figure(number, finding, run),
    }


def _evidence(evidence: Sequence[Evidence]) -> list[tuple[str, str, str]]:
    return [(one.what, evidence_value(one.value, one.unit), one.source) for one in evidence]


def _remedy(remedy: Remedy, *, is_recipe: bool) -> dict[str, str]:
    words_of = words.change_words if is_recipe else words.argument_words
    return {
        "what": remedy.what,
        "lines": "\n".join(words_of(key, value) for key, value in remedy.overrides.items()),
        "gain": words.gain_words(remedy.gain) if remedy.gain is not None else "",
        "basis": remedy.gain.basis if remedy.gain is not None else "",
        "costs": remedy.costs,
    }


def _command(run: RunData, diagnosis: Diagnosis) -> str:
    """What writes the recipe with the first remedy that changes one; empty where none does."""
    changed = [n for n, one in enumerate(diagnosis.findings, 1) if any(each.overrides for each in one.remedies)]
    if run.recipe is None or not changed:
        return ""
    return f"hf-efficient diagnose {shlex.quote(run.directory)} --apply next.yaml --finding {changed[0]}"


def profile_section(run: RunData) -> Section | None:
    profile = run.account.profile
    if profile is None:
        return None
    instruments, remark = instrument_rows(profile.instruments), shared_remark(profile.instruments)
    context = {"tables": list(found_tables(profile, _MOST_PROFILE_ROWS)), "instruments": instruments, "remark": remark}
    return Section("profile", "Profile", context=context)


def trace_section(run: RunData) -> Section | None:
    held = run.trace
    if held is None:
        return None
    context: dict[str, Any] = {
        "why": held.why,
        "title": held.name,
        "command": f"hf-efficient diagnose {shlex.quote(held.path)}",
        "others": held.others,
    }
    if held.breakdown is None:
        return Section("trace", "Trace", context=context)
    trace = held.breakdown
    parts = [*map(_device, trace.devices), *_host(trace)]
    figures = [shown["figure"] for part in parts for shown in part["tables"] if shown["figure"] is not None]
    context |= {"title": trace_tables.trace_title(trace, held.name), "remarks": list(trace.remarks), "parts": parts}
    return Section("trace", "Trace", figures, context)


def _device(device: DeviceBreakdown) -> dict[str, Any]:
    time = trace_tables.device_time_table(device, "device time")
    name = f"trace-families-{device.device}"
    families = family_bar(device.families, name, "Work by family") if device.families else None
    work = trace_tables.work_table(device)
    tables = [
        _shown(time, [device_color(row[0]) for row in time.rows], device_time_bar(device)),
        _shown(work, [family_color(row[0]) for row in work.rows], families),
        *map(_shown, trace_tables.device_tables(device, _MOST_TRACE_ROWS)),
    ]
    return {"title": trace_tables.device_title(device), "tables": tables, "lines": trace_tables.device_lines(device)}


def _host(trace: TraceBreakdown) -> list[dict[str, Any]]:
    tables = []
    for table in trace_tables.host_tables(trace, _MOST_TRACE_ROWS):
        if table.shares is None:
            tables.append(_shown(table))
        elif trace.host is not None and table.rows:
            figure = family_bar(trace.host.families, "trace-families-host", "Operators by family")
            tables.append(_shown(table, [family_color(row[0]) for row in table.rows], figure))
    return [{"title": "host", "tables": tables, "lines": []}] if tables else []


def _shown(table: FoundTable, colors: Sequence[str] = (), figure: Figure | None = None) -> dict[str, Any]:
    """A table, with the colours of its rows where a figure stands above it."""
    return {"table": table, "colors": colors, "figure": figure}
