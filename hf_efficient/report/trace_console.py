"""The breakdown of a trace on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hf_efficient.records.trace import TraceBreakdown
from hf_efficient.records.trace_device import DeviceBreakdown
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

__all__ = ["trace_renderables"]

_BAR = 24
_MOST_ROWS = 8


def trace_renderables(trace: TraceBreakdown) -> list[RenderableType]:
    """What to print, in order: what was read, each device, where the host waited, the steps, the host's operators."""
    parts: list[RenderableType] = [Text(trace_title(trace), "bold"), *(Text(one, "yellow") for one in trace.remarks)]
    for device in trace.devices:
        parts += map(_spaced, _device(device))
    return [*parts, *(_spaced(_table(one)) for one in _host_tables(trace))]


def _host_tables(trace: TraceBreakdown) -> Iterator[TraceTable]:
    if trace.syncs:
        yield sync_table(trace.syncs, _MOST_ROWS)
    if trace.steps:
        yield step_table(trace.steps, _MOST_ROWS)
    if trace.host is not None and not trace.devices:
        yield family_table(trace.host.families, "operators by family", "calls")
    if trace.host is not None:
        yield operator_table(trace.host, _MOST_ROWS)


def _device(device: DeviceBreakdown) -> Iterator[RenderableType]:
    yield _table(device_time_table(device, device_title(device)))
    yield _table(family_table(device.families, "kernels, copies and memsets by family", "count"))
    yield _table(kernel_table(device.kernels, _MOST_ROWS))
    lines = [*launch_lines(device.launches), *communication_line(device.communication)]
    if lines:
        yield Text("\n".join(lines))
    if device.copies:
        yield _table(copy_table(device.copies))
    if device.gaps:
        yield _table(gap_table(device.gaps, _MOST_ROWS))


def _table(held: TraceTable) -> Table:
    """A column of names that gives way (``_name``), and columns of figures that do not: 80 columns are enough."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(_name(held.headings[0]))
    for heading in held.headings[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    if held.shares is not None:
        table.add_column("", no_wrap=True)
    for place, (name, *figures) in enumerate(held.rows):
        bar = [] if held.shares is None else [Text("█" * round(_BAR * held.shares[place]), "cyan")]
        table.add_row(_name(name), *figures, *bar)
    if held.total is not None:
        table.add_row(Text(held.total[0], "bold"), *held.total[1:])
    return table


def _name(text: str) -> Text:
    """On one line, cut off where the column is too narrow: a column that may wrap is the one that gives way."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _spaced(part: RenderableType) -> RenderableType:
    """With an empty line before it."""
    return Padding(part, (1, 0, 0, 0))
