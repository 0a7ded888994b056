"""Memory over the time of a run, and what it was used for."""

from __future__ import annotations

from typing import Any

from hf_efficient.records import MemoryAccount, RunAccount
from hf_efficient.records.series import RunSeries
from hf_efficient.report.phases import category_color, category_label
from hf_efficient.report.plots.figure import Figure, Missing, axis, legend_of, rounded
from hf_efficient.report.plots.run_axes import TimeAxis, time_axis, upright
from hf_efficient.report.plots.time_lines import time_line
from hf_efficient.units import size

__all__ = ["GIB", "memory_over_time"]

GIB = 2**30
_TOLD = "%{y:.3~f} GiB"
_LINES = (
    ("device_reserved_bytes", "reserved on the device", "#c2410c", "dot"),
    ("device_allocated_bytes", "allocated on the device", "#c2410c", "solid"),
    ("rss_bytes", "host memory of the process", "#2b62b5", "solid"),
)


def memory_over_time(account: RunAccount, series: RunSeries, *, kinds: bool = True) -> Figure | Missing:
    """Lines of what was seen about once per second; behind them, while the run trained, the kinds of memory stacked.

    Args:
        account, series: of the run.
        kinds: whether to draw those.
    """
    system = series.system
    where = time_axis(account.time.wall_seconds)
    lines = [
        trace
        for name, label, color, dash in _LINES
        for trace in time_line(
            label, getattr(system, name).high, system, where, {"color": color, "dash": dash}, _TOLD, 1 / GIB
        )
    ]
    if not lines:
        return Missing("Over time", "no readings were taken while the run went on; the peaks are in the table")
    levels = _levels(account.memory, series, where) if kinds else []
    traces = [*levels, *lines]
    summary = f"Memory in GiB, as it was read about once per second. {_peaks(account.memory)}"
    if levels:
        summary += " The areas are the kinds of memory in the table, from the first step on."
    layout: dict[str, Any] = {
        "hovermode": "x unified",
        "xaxis": where.layout(),
        "yaxis": axis("GiB", rangemode="tozero"),
        "shapes": [upright(at, dash="dash") for at in where.places(series.process_starts_seconds[1:])],
    }
    return Figure("memory-time", "Over time", summary, traces, layout, 300, "time", where.per_second, legend_of(traces))


def _levels(memory: MemoryAccount, series: RunSeries, where: TimeAxis) -> list[dict[str, Any]]:
    if not memory.categories or not len(series.steps):
        return []
    stretches = _trained(series, where)
    x = [end for stretch in stretches for end in (stretch[0], *stretch, stretch[1])]
    shape = [0.0, 1.0, 1.0, 0.0] * len(stretches)
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "kinds",
            "name": category_label(kind.name),
            "x": x,
            "y": rounded(kind.bytes / GIB * on for on in shape),
            "line": {"width": 0, "color": category_color(kind.name)},
            "fillcolor": category_color(kind.name),
            "hoverinfo": "skip",
        }
        for kind in memory.categories
        if kind.bytes > 0
    ]


def _trained(series: RunSeries, where: TimeAxis) -> list[tuple[float, float]]:
    """From the first step of each process to its end, on the axis."""
    starts = series.process_starts_seconds or [0.0]
    ends = [*starts[1:], where.end / where.per_second]
    found = []
    for start, end in zip(starts, ends, strict=True):
        first = next((at for at in series.steps.started_at_seconds if start <= at < end), None)
        if first is not None:
            found.append((where.places([first])[0], where.places([end])[0]))
    return found


def _peaks(memory: MemoryAccount) -> str:
    told = [
        f"{size(value)} {words}"
        for value, words in (
            (memory.device_peak_allocated_bytes, "allocated on the device"),
            (memory.device_peak_reserved_bytes, "reserved"),
            (memory.peak_rss_bytes, "in the host's memory"),
        )
        if value is not None
    ]
    return f"At most: {', '.join(told)}." if told else ""
