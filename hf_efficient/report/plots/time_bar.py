"""Where the time of a whole run went, as one bar."""

from __future__ import annotations

from hf_efficient.records import TimeAccount
from hf_efficient.report.phases import phase_color, phase_label
from hf_efficient.report.plots.figure import Figure
from hf_efficient.report.plots.run_axes import time_axis
from hf_efficient.units import seconds

__all__ = ["time_bar"]


def time_bar(time: TimeAccount) -> Figure:
    """One stacked bar over the wall time; the table below it tells the colours and the figures."""
    where = time_axis(time.wall_seconds)
    held = {**time.phase_seconds, "unattributed": time.unattributed_seconds}
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": phase_label(name),
            "x": where.places([value]),
            "y": [""],
            "customdata": [seconds(value)],
            "marker": {"color": phase_color(name)},
            "hovertemplate": "%{customdata}",
        }
        for name, value in held.items()
        if value > 0
    ]
    longest = sorted(((value, name) for name, value in held.items() if value > 0), reverse=True)[:3]
    told = ", ".join(f"{phase_label(name)} {seconds(value)}" for value, name in longest)
    return Figure(
        id="time-bar",
        title="Over the run",
        summary=f"The wall time of {seconds(time.wall_seconds)} by phase, in the order of the table. Most: {told}.",
        traces=traces,
        layout={
            "barmode": "stack",
            "bargap": 0,
            "hovermode": "closest",
            "xaxis": {**where.layout(), "title": {"text": where.unit, "standoff": 4}},
            "yaxis": {"visible": False, "fixedrange": True},
        },
        height=104,
    )
