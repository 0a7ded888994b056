"""Which phase the run was in, over its time: what the curves of the machine stand below."""

from __future__ import annotations

from hf_efficient.records import RunAccount
from hf_efficient.records.series import RunSeries, StepSeries
from hf_efficient.report.phases import phase_color, phase_label
from hf_efficient.report.plots.figure import Figure, Missing, axis, legend_of
from hf_efficient.report.plots.run_axes import time_axis
from hf_efficient.report.plots.stack import Layer, stack_traces
from hf_efficient.report.plots.system.curves import aligned

__all__ = ["phases_over_time"]


def phases_over_time(account: RunAccount, series: RunSeries) -> Figure | Missing:
    """Shares of each bucket of steps by phase, as wide as its time; outside the steps there is nothing.

    Args:
        account: of the run, for its length.
        series: of the same.
    """
    steps = series.steps
    if not len(steps):
        return Missing("Phases", "no step was recorded")
    where = time_axis(account.time.wall_seconds)
    pairs = list(zip(steps.started_at_seconds, steps.wall_seconds, strict=True))
    layers = [
        Layer(phase_label(name), phase_color(name), _percents(sums, steps))
        for name, sums in steps.phase_seconds.items()
        if any(sums)
    ]
    centers = where.places([start + wall / 2 for start, wall in pairs])
    traces = stack_traces(layers, centers, where.places([wall for _, wall in pairs]), "%{y:.3~g}%")
    layout = {
        "barmode": "stack",
        "bargap": 0,
        **aligned(where),
        "yaxis": {**axis("% of the time", range=[0, 100]), "automargin": False},
    }
    told = "What each optimizer step was spent on. Before the first and after the last one the run starts and ends."
    legend = legend_of(traces)
    return Figure("phases-time", "Phases", told, traces, layout, 190, "time", where.per_second, legend)


def _percents(sums: list[float], steps: StepSeries) -> list[float | None]:
    walls = zip(sums, steps.wall_seconds, strict=True)
    return [100 * seconds / wall if wall > 0 else None for seconds, wall in walls]
