"""Sections of a run's page about causes: the findings with their remedies, the trace of its profiler, its profiles."""

import shlex
from collections.abc import Sequence
from typing import Any

from hf_efficient.records.trace import DeviceBreakdown, TraceBreakdown
from hf_efficient.reporting import diagnosis as words
from hf_efficient.reporting import trace_tables
from hf_efficient.reporting.html.render import Section
from hf_efficient.reporting.plots.figure import Figure
from hf_efficient.reporting.plots.findings import finding_figure
from hf_efficient.reporting.plots.time import device_color, device_time_bar, family_bar, family_color
from hf_efficient.reporting.profile_tables import found_tables, instrument_rows, shared_remark
from hf_efficient.reporting.run_data import RunData
from hf_efficient.reporting.terminal import FoundTable

_MOST_TRACE_ROWS = 12
_MOST_PROFILE_ROWS = 25
_CHIPS = {
    "confirmed": "good",
    "larger": "good",
    "smaller": "warn",
    "retracted": "bad",
    "critical": "bad",
    "warning": "warn",
}


def findings_section(run: RunData) -> Section | None:
    diagnosis = run.diagnosis
    if diagnosis is None:
        return None
    change = words.change_words if run.recipe is not None else words.argument_words
    figures = [finding_figure(number, one, run) for number, one in enumerate(diagnosis.findings, 1)]
    changed = [n for n, one in enumerate(diagnosis.findings, 1) if any(each.overrides for each in one.remedies)]
    applies = f"hf-efficient diagnose {shlex.quote(run.directory)} --apply next.yaml --finding"
    context = {
        "diagnosis": diagnosis,
        "words": words,
        "chips": _CHIPS,
        "figures": figures,
        "lines": lambda remedy: "\n".join(change(key, value) for key, value in remedy.overrides.items()),
        "is_recipe": run.recipe is not None,
        "command": f"{applies} {changed[0]}" if changed and run.recipe is not None else "",
        "judged": len(diagnosis.rules) - len(diagnosis.abstentions),
    }
    return Section("findings", "Findings", [one for one in figures if one is not None], context)


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
        "command": f"hf-efficient trace {shlex.quote(held.path)}",
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
    return {
        "title": trace_tables.device_title(device),
        "tables": tables,
        "lines": list(trace_tables.device_lines(device)),
    }


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
    return {"table": table, "colors": colors, "figure": figure}
