"""Where the time of several runs went, under each other."""

from __future__ import annotations

from collections.abc import Sequence

from hf_efficient.records import PHASES, TimeAccount
from hf_efficient.report.phases import phase_color, phase_label
from hf_efficient.report.plots.figure import Figure, axis, legend_of
from hf_efficient.report.plots.run_axes import time_axis
from hf_efficient.units import seconds

__all__ = ["compare_phases"]


def compare_phases(times: Sequence[TimeAccount], labels: Sequence[str]) -> Figure:
    """A stacked bar per run over the same axis; the first run is on top."""
    where = time_axis(max(time.wall_seconds for time in times))
    held = [{**time.phase_seconds, "unattributed": time.unattributed_seconds} for time in times]
    known = dict.fromkeys(name for phases in held for name, value in phases.items() if value > 0)
    names = sorted(known, key=lambda name: PHASES.index(name) if name in PHASES else len(PHASES))
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": phase_label(name),
            "y": list(reversed(labels)),
            "x": where.places([max(phases.get(name, 0.0), 0.0) for phases in reversed(held)]),
            "customdata": [seconds(phases.get(name, 0.0)) for phases in reversed(held)],
            "marker": {"color": phase_color(name)},
            "hovertemplate": "%{customdata}",
        }
        for name in names
    ]
    told = ", ".join(f"{label} {seconds(time.wall_seconds)}" for label, time in zip(labels, times, strict=True))
    return Figure(
        "compare-phases",
        "By phase",
        f"The wall time of each run by phase: {told}.",
        traces,
        {
            "barmode": "stack",
            "bargap": 0.3,
            "hovermode": "closest",
            "xaxis": {**where.layout(), "title": {"text": f"wall time, {where.unit}", "standoff": 6}},
            "yaxis": axis("", fixedrange=True, type="category"),
        },
        90 + 52 * len(times),
        legend=legend_of(traces),
    )
