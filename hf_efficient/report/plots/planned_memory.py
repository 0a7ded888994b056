"""What is allocated over the two steps that a plan rehearses."""

from __future__ import annotations

import itertools
from typing import Any

from hf_efficient.records.planned_memory import PlannedMemory
from hf_efficient.records.planned_timeline import PlannedTimeline
from hf_efficient.report.phases import (
    CATEGORY_COLORS,
    category_color,
    category_label,
    phase_color,
    phase_label,
)
from hf_efficient.report.plots.figure import Figure, Missing, axis, legend_of, rounded
from hf_efficient.report.plots.run_axes import upright
from hf_efficient.units import size

__all__ = ["planned_memory_over_steps"]

_GIB = 2**30
_STRIP = 0.055
"""Share of the height that tells the phases."""


def planned_memory_over_steps(memory: PlannedMemory) -> Figure | Missing:
    """The kinds of memory stacked over allocations and frees, and below them a strip of the phases."""
    held = memory.timeline
    if held is None or not held.events:
        return Missing("Over two steps", "this plan was made without it")
    traces = [*_areas(held), *_strip(held)]
    layout: dict[str, Any] = {
        "hovermode": "x unified",
        "barmode": "stack",
        "bargap": 0,
        "xaxis": axis("allocations and frees, in order", range=[0, held.events[-1]], anchor="y2"),
        "yaxis": axis("GiB", rangemode="tozero", domain=[_STRIP + 0.03, 1]),
        "yaxis2": {"visible": False, "fixedrange": True, "domain": [0, _STRIP]},
        "shapes": [upright(held.second_step, dash="dash")],
    }
    return Figure(
        "planned-memory", "Over two steps", _summary(memory, held), traces, layout, 340, legend=legend_of(traces)
    )


def _summary(memory: PlannedMemory, held: PlannedTimeline) -> str:
    step = " of the first step" if memory.peak_step == 1 else " of the second step"
    where = phase_label(memory.peak_phase) + ("" if memory.peak_phase == "evaluation" else step)
    behind = ", and a batch of an evaluation behind them" if "evaluation" in held.phases else ""
    return (
        f"The first two optimizer steps, parted by the dashed line{behind}; it is no axis of time, as some allocations "
        f"follow each other faster than others. Most is allocated in the {where}: {size(memory.peak_allocated_bytes)}. "
        "The strip below tells the phases."
    )


def _areas(held: PlannedTimeline) -> list[dict[str, Any]]:
    known = [name for name in CATEGORY_COLORS if any(held.categories.get(name, ()))]
    others = [name for name in held.categories if name not in CATEGORY_COLORS]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "kinds",
            "name": category_label(name),
            "x": held.events,
            "y": rounded(value / _GIB for value in held.categories[name]),
            "line": {"width": 0, "color": category_color(name)},
            "fillcolor": category_color(name),
            "hovertemplate": "%{y:.3~f} GiB",
        }
        for name in (*known, *others)
    ]


def _strip(held: PlannedTimeline) -> list[dict[str, Any]]:
    """A bar per stretch of one phase; what is computed again belongs to the backward that asks for it."""
    found: list[dict[str, Any]] = []
    end = 0
    phases = ["backward" if phase == "recompute" else phase for phase in held.phases]
    for phase, group in itertools.groupby(zip(phases, held.events, strict=True), key=lambda pair: pair[0]):
        start, end = end, [event for _, event in group][-1]
        found.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": phase_label(phase),
                "legendgroup": phase_label(phase),
                "x": [end - start],
                "y": [""],
                "yaxis": "y2",
                "marker": {"color": phase_color(phase)},
                "hoverinfo": "skip",
            }
        )
    return found
