"""Tables about a trace, narrow enough for 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from hf_efficient.records.trace import (
    CopyKind,
    DeviceBreakdown,
    DeviceGap,
    FamilyTime,
    HostBreakdown,
    KernelTime,
    SyncSite,
    TraceStep,
)
from hf_efficient.report.trace_rows import device_time_rows
from hf_efficient.units import short_count, short_seconds, size

__all__ = [
    "copy_table",
    "device_time_table",
    "family_table",
    "gap_table",
    "kernel_table",
    "operator_table",
    "step_table",
    "sync_table",
]

_BAR = 24
_MOST_ROWS = 8
_CAUSES = {"host_bound": "host", "launch_bound": "launch", "other": "other"}


def device_time_table(device: DeviceBreakdown, name: str) -> Table:
    """Where the time of a device went, from its first event to its last; each second in one row."""
    window = device.busy.window_seconds
    table = _table(name, "time", "share", bar=True)
    for label, seconds in device_time_rows(device):
        part = seconds / window if window else 0.0
        table.add_row(label, short_seconds(seconds), f"{100 * part:.1f}%", Text("█" * round(_BAR * part), "cyan"))
    table.add_row(Text("in all", "bold"), short_seconds(window), "100.0%" if window else "", "")
    return table


def family_table(families: Sequence[FamilyTime], title: str, counted: str) -> Table:
    """Time by kind of work."""
    table = _table(title, "time", "share", counted, bar=True)
    for one in families:
        bar = Text("█" * round(_BAR * one.share), "cyan")
        table.add_row(one.family, short_seconds(one.seconds), f"{100 * one.share:.1f}%", f"{one.count:,}", bar)
    return table


def kernel_table(kernels: Sequence[KernelTime]) -> Table:
    """The kernels that take longest."""
    table = _table("kernel (operator)", "time", "share", "count", "mean")
    for one in kernels[:_MOST_ROWS]:
        name = f"{one.name.removeprefix('at::native::')}" + (f" ({one.operator})" if one.operator else "")
        cells = (
            short_seconds(one.seconds),
            f"{100 * one.share:.1f}%",
            f"{one.count:,}",
            short_seconds(one.mean_seconds),
        )
        table.add_row(_name(name), *cells)
    return table


def operator_table(host: HostBreakdown) -> Table:
    """The operators of longest self time on the host."""
    table = _table("operator on the host", "self time", "share", "calls", "in all")
    for one in host.operators[:_MOST_ROWS]:
        cells = (short_seconds(one.self_seconds), f"{100 * one.share:.1f}%", f"{one.count:,}")
        table.add_row(_name(one.name), *cells, short_seconds(one.total_seconds))
    return table


def copy_table(copies: Sequence[CopyKind]) -> Table:
    """Copies by direction."""
    table = _table("copies", "time", "count", "small", "bytes", "rate")
    for one in copies:
        rate = f"{short_count(one.bytes_per_second)}B/s" if one.bytes_per_second is not None else "not told"
        told = size(one.bytes) if one.bytes is not None else "not told"
        name = one.direction + (f", {one.host_memory}" if one.host_memory else "")
        table.add_row(name, short_seconds(one.seconds), f"{one.count:,}", f"{one.small_count:,}", told, rate)
    return table


def gap_table(gaps: Sequence[DeviceGap]) -> Table:
    """The longest gaps."""
    table = _table("what the host did in the longest gaps", "gap", "at", "step", "bound by")
    for one in gaps[:_MOST_ROWS]:
        doing = ", ".join(f"{name} {100 * part:.0f}%" for name, part in one.host) or "not told"
        step = "" if one.step is None else str(one.step)
        at = short_seconds(one.start_seconds)
        table.add_row(_name(doing), short_seconds(one.seconds), at, step, _CAUSES[one.cause])
    return table


def sync_table(syncs: Sequence[SyncSite]) -> Table:
    """Where the host waited for a device."""
    table = _table("the host waited for the device in", "count", "waited", "idle after")
    for one in syncs[:_MOST_ROWS]:
        place = ", ".join(part for part in (one.site, one.operator, one.call) if part)
        table.add_row(_name(place), f"{one.count:,}", short_seconds(one.seconds), short_seconds(one.idle_after_seconds))
    return table


def step_table(steps: Sequence[TraceStep]) -> Table:
    """The steps; of many the longest, in order."""
    shown = sorted(sorted(steps, key=lambda one: -one.seconds)[:_MOST_ROWS], key=lambda one: one.start_seconds)
    title = "step" if len(shown) == len(steps) else f"the longest {len(shown)} of {len(steps)} steps"
    if steps[0].busy_seconds is None:
        return _step_times(title, shown)
    table = _table(title, "time", "device busy", "waits", "waited")
    for one in shown:
        busy = f"{100 * (one.busy_seconds or 0.0) / one.seconds:.1f}%" if one.seconds else ""
        cells = (short_seconds(one.seconds), busy, f"{one.syncs:,}", short_seconds(one.sync_seconds))
        table.add_row(str(one.number), *cells)
    return table


def _step_times(title: str, steps: Sequence[TraceStep]) -> Table:
    table = _table(title, "time")
    for one in steps:
        table.add_row(str(one.number), short_seconds(one.seconds))
    return table


def _table(first: str, *others: str, bar: bool = False) -> Table:
    """A column of names that gives way (``_name``), and columns of figures that do not."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(_name(first))
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    if bar:
        table.add_column("", no_wrap=True)
    return table


def _name(text: str) -> Text:
    """On one line, cut off where the column is too narrow: a column that may wrap is the one that gives way."""
    return Text(text, no_wrap=True, overflow="ellipsis")
