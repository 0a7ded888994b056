"""Power over the time of a run."""

from __future__ import annotations

from typing import Any

from hf_efficient.records import RunAccount
from hf_efficient.records.series import RunSeries
from hf_efficient.report.plots.figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    Figure,
    Missing,
    axis,
    legend_of,
    rounded,
)
from hf_efficient.report.plots.run_axes import time_axis

__all__ = ["power"]

_COLORS = (RED, BLUE, GREEN, PURPLE, ORANGE, "#823f35", "#2e548d", GREY)


def power(account: RunAccount, series: RunSeries) -> Figure | Missing:
    """A line per meter: the mean watts of each bucket of readings."""
    system = series.system
    if not system.watts:
        return Missing("Power", "no meter told its power while the run went on")
    where = time_axis(account.time.wall_seconds)
    middles = where.places(
        [(a + b) / 2 for a, b in zip(system.started_at_seconds, system.ended_at_seconds, strict=True)]
    )
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": middles,
            "y": rounded(band.mean),
            "line": {"color": _COLORS[place % len(_COLORS)], "width": 2},
            "hovertemplate": "%{y:.4~g} W",
        }
        for place, (name, band) in enumerate(system.watts.items())
    ]
    return Figure(
        "power",
        "Power",
        f"Watts as read about once per second: {', '.join(system.watts)}.",
        traces,
        {"hovermode": "x unified", "xaxis": where.layout(), "yaxis": axis("W", rangemode="tozero")},
        240,
        "time",
        where.per_second,
        legend_of(traces),
    )
