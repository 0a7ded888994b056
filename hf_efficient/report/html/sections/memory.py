"""Memory: over time, by kind, and its peaks."""

from __future__ import annotations

from hf_efficient.records import MemoryAccount
from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.phases import category_color, category_label, phase_label
from hf_efficient.report.plots.figure import Figure, Missing
from hf_efficient.report.plots.memory import memory_over_time
from hf_efficient.report.run_data import RunData
from hf_efficient.units import size

__all__ = ["memory_section"]


def memory_section(run: RunData) -> Section:
    """The plot, a table of the kinds, and the peaks."""
    memory = run.account.memory
    figure: Figure | Missing
    if run.series is None:
        figure = Missing("Over time", "only run.json was kept of this run, not its records")
    else:
        figure = memory_over_time(run.account, run.series)
    kinds = [
        {
            "label": category_label(kind.name),
            "color": category_color(kind.name),
            "bytes": kind.bytes,
            "how": kind.how,
            "note": kind.note,
        }
        for kind in memory.categories
        if kind.bytes > 0
    ]
    largest = max((kind.bytes for kind in memory.categories), default=0)
    phases = [(phase_label(name), size(value)) for name, value in (memory.phase_peak_allocated_bytes or {}).items()]
    more = -sum(kind.bytes for kind in memory.categories if kind.bytes < 0)
    context = {
        "more": size(more) if more else "",
        "kinds": kinds,
        "largest": largest,
        "peaks": _peaks(memory),
        "phases": phases,
    }
    return Section("memory", "Memory", [figure], context)


def _peaks(memory: MemoryAccount) -> list[tuple[str, str]]:
    found = [
        (label, size(value))
        for label, value in (
            ("allocated on the device, at most", memory.device_peak_allocated_bytes),
            ("reserved on the device, at most", memory.device_peak_reserved_bytes),
            ("host memory of the process, at most", memory.peak_rss_bytes),
        )
        if value is not None
    ]
    if memory.device_allocation_retries is not None:
        found.append(("allocation retries", f"{memory.device_allocation_retries:,}"))
    return found
