"""What the trace of a run's profiler tells."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field

from hf_efficient.records.trace import TraceBreakdown
from hf_efficient.records.trace_device import DeviceBreakdown
from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.plots.figure import Figure
from hf_efficient.report.plots.trace_time import device_color, device_time_bar, family_bar, family_color
from hf_efficient.report.run_data import RunData
from hf_efficient.report.trace_rows import communication_line, device_title, launch_lines, trace_title
from hf_efficient.report.trace_tables import (
    TraceTable,
    copy_table,
    device_time_table,
    family_table,
    gap_table,
    kernel_table,
    operator_table,
    step_table,
    sync_table,
)

__all__ = ["ShownTable", "TracePart", "trace_section"]

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
