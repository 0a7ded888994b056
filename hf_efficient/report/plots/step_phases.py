"""Where the time of each optimizer step went."""

from __future__ import annotations

from hf_efficient.records import StepTimes
from hf_efficient.records.series import StepSeries
from hf_efficient.report.phases import phase_color, phase_label
from hf_efficient.report.plots.figure import Figure, Missing, legend_of
from hf_efficient.report.plots.run_axes import step_axis
from hf_efficient.report.plots.stack import stack_traces, step_layer, step_layout

__all__ = ["step_phases"]

_ROOM = 1.3
_CLIP_FROM = 2.0


def step_phases(steps: StepSeries, times: StepTimes) -> Figure | Missing:
    """Seconds per step, stacked by phase.

    Where a few steps with evaluations, checkpoints or a compilation tower over the others, the others have the height,
    and the summary says so.
    """
    if not len(steps):
        return Missing("Per step", "no step was recorded")
    where = step_axis(steps)
    phases = steps.phase_seconds.items()
    layers = [step_layer(phase_label(name), phase_color(name), sums, steps) for name, sums in phases]
    traces = stack_traces(layers, where.centers, where.widths if max(steps.steps) > 1 else None)
    top, clipped = _top(steps, times)
    first, last = steps.first_step[0], steps.last_step[-1]
    summary = f"Seconds per optimizer step by phase, from step {first:,} to {last:,}."
    if max(steps.steps) > 1:
        summary += f" A point is the mean of up to {max(steps.steps):,} steps."
    if clipped:
        summary += " Steps with an evaluation, a checkpoint or a slow start reach above the plot: “Whole” shows them."
    layout = step_layout(steps, where)
    if clipped:
        layout["yaxis"]["range"] = [0, top]
    return Figure("step-phases", "Per step", summary, traces, layout, 340, "step", legend=legend_of(traces))


def _top(steps: StepSeries, times: StepTimes) -> tuple[float, bool]:
    """A height that shows the training of nearly every step, and whether that cuts something off."""
    training = _ROOM * times.p99_seconds if times.p99_seconds else max(steps.step_seconds_mean)
    whole = max(wall / count for wall, count in zip(steps.wall_seconds, steps.steps, strict=True))
    return training, whole > _CLIP_FROM * training
