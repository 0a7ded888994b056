"""Where the time of each optimizer step went."""

from __future__ import annotations

from typing import Any

from hf_efficient.account.rates import per_step
from hf_efficient.records import StepTimes
from hf_efficient.records.series import StepSeries
from hf_efficient.report.phases import phase_color, phase_label
from hf_efficient.report.plots.figure import Figure, Missing, axis, legend_of, rounded
from hf_efficient.report.plots.run_axes import StepAxis, step_axis

__all__ = ["step_phases"]

_MOST_BARS = 250
_ROOM = 1.3
_CLIP_FROM = 2.0


def step_phases(steps: StepSeries, times: StepTimes) -> Figure | Missing:
    """Seconds per step, stacked by phase: bars, or areas where bars would be thinner than a pixel or two.

    Where a few steps with evaluations, checkpoints or a compilation tower over the others, the others have the height,
    and the summary says so.
    """
    if not len(steps):
        return Missing("Per step", "no step was recorded")
    where = step_axis(steps)
    draw = _bars if len(steps) <= _MOST_BARS else _area
    traces = [draw(name, sums, steps, where) for name, sums in steps.phase_seconds.items() if any(sums)]
    top, clipped = _top(steps, times)
    first, last = steps.first_step[0], steps.last_step[-1]
    summary = f"Seconds per optimizer step by phase, from step {first:,} to {last:,}."
    if max(steps.steps) > 1:
        summary += f" A point is the mean of up to {max(steps.steps):,} steps."
    if clipped:
        summary += " Steps with an evaluation, a checkpoint or a slow start reach above the plot: “Whole” shows them."
    layout: dict[str, Any] = {
        "barmode": "stack",
        "bargap": 0.12 if len(steps) <= 60 else 0,
        "hovermode": "x unified",
        "xaxis": where.layout(),
        "yaxis": axis("seconds per step", rangemode="tozero", hoverformat=".3~s", ticksuffix=""),
        "shapes": where.resumptions(),
    }
    if clipped:
        layout["yaxis"]["range"] = [0, top]
    return Figure("step-phases", "Per step", summary, traces, layout, 340, "step", legend=legend_of(traces))


def _trace(name: str, steps: StepSeries, where: StepAxis) -> dict[str, Any]:
    return {"name": phase_label(name), "x": rounded(where.centers), "hovertemplate": "%{y:.3~s}s"}


def _bars(name: str, sums: list[float], steps: StepSeries, where: StepAxis) -> dict[str, Any]:
    values = rounded(per_step(sums, steps))
    return {
        **_trace(name, steps, where),
        "type": "bar",
        "y": [value or None for value in values],
        "width": where.widths if max(steps.steps) > 1 else None,
        "marker": {"color": phase_color(name)},
    }


def _area(name: str, sums: list[float], steps: StepSeries, where: StepAxis) -> dict[str, Any]:
    return {
        **_trace(name, steps, where),
        "type": "scatter",
        "mode": "lines",
        "stackgroup": "phases",
        "y": rounded(per_step(sums, steps)),
        "line": {"width": 0, "shape": "hvh", "color": phase_color(name)},
        "fillcolor": phase_color(name),
    }


def _top(steps: StepSeries, times: StepTimes) -> tuple[float, bool]:
    """A height that shows the training of nearly every step, and whether that cuts something off."""
    training = _ROOM * times.p99_seconds if times.p99_seconds else max(steps.step_seconds_mean)
    whole = max(wall / count for wall, count in zip(steps.wall_seconds, steps.steps, strict=True))
    return training, whole > _CLIP_FROM * training
