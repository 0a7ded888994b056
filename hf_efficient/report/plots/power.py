"""Power over the time of a run."""

from __future__ import annotations

import itertools

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
)
from hf_efficient.report.plots.run_axes import time_axis
from hf_efficient.report.plots.time_lines import time_line

__all__ = ["power"]

_COLORS = (RED, BLUE, GREEN, PURPLE, ORANGE, "#823f35", "#2e548d", GREY)


def power(account: RunAccount, series: RunSeries) -> Figure | Missing:
    """A line per meter: the mean watts of each bucket of readings."""
    system = series.system
    if not system.watts:
        return Missing("Power", "no meter told its power while the run went on")
    where = time_axis(account.time.wall_seconds)
    traces = [
        trace
        for (name, band), color in zip(system.watts.items(), itertools.cycle(_COLORS), strict=False)
        for trace in time_line(name, band.mean, system, where, {"color": color}, "%{y:.4~g} W")
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
