"""One quantity over the steps of several runs, over each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_efficient.records.series import StepSeries
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
from hf_efficient.report.plots.run_axes import step_axis

__all__ = ["RUN_STYLES", "compare_losses", "compare_step_times"]

RUN_STYLES = [
    (BLUE, "solid"),
    (ORANGE, "solid"),
    (GREEN, "dash"),
    (PURPLE, "dash"),
    (RED, "dot"),
    (GREY, "dot"),
]
"""Colour and dash of each run, in their order; they start again from the seventh on."""


def compare_losses(series: Sequence[StepSeries | None], labels: Sequence[str]) -> Figure | Missing:
    """The training losses as they were logged."""
    columns = [[] if steps is None else steps.loss for steps in series]
    traces, end = _lines(series, columns, labels, "%{y:.4~g}")
    if not traces:
        return Missing("Training loss", "no run has logged any")
    summary = f"As the Trainer logged it.{_left_out(labels, traces)}"
    return _figure("compare-loss", "Training loss", summary, traces, end, axis("loss"))


def compare_step_times(series: Sequence[StepSeries | None], labels: Sequence[str]) -> Figure | Missing:
    """The time of each step without its evaluation and checkpointing."""
    columns = [[] if steps is None else list(steps.step_seconds_mean) for steps in series]
    traces, end = _lines(series, columns, labels, "%{y:.3~s}s")
    if not traces:
        return Missing("Step times", "no run has recorded a step")
    summary = f"Evaluations and checkpoints apart.{_left_out(labels, traces)}"
    vertical = axis("seconds per step", rangemode="tozero")
    return _figure("compare-step-times", "Step times", summary, traces, end, vertical)


def _lines(
    series: Sequence[StepSeries | None],
    columns: Sequence[Sequence[float | None]],
    labels: Sequence[str],
    told: str,
) -> tuple[list[dict[str, Any]], float]:
    """A line per run that has figures, and where the longest one ends."""
    traces: list[dict[str, Any]] = []
    ends = [0.5]
    for place, (steps, column, label) in enumerate(zip(series, columns, labels, strict=True)):
        if steps is None or all(value is None for value in column):
            continue
        where = step_axis(steps)
        known = [(at, value) for at, value in zip(where.centers, column, strict=True) if value is not None]
        color, dash = RUN_STYLES[place % len(RUN_STYLES)]
        ends.append(where.ends[-1])
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": label,
                "x": rounded(at for at, _ in known),
                "y": rounded(value for _, value in known),
                "line": {"color": color, "width": 2, "dash": dash},
                "hovertemplate": told,
            }
        )
    return traces, max(ends)


def _left_out(labels: Sequence[str], traces: Sequence[dict[str, Any]]) -> str:
    missing = len(labels) - len(traces)
    return f" {missing} of the runs have no records of it." if missing else ""


def _figure(
    name: str, title: str, summary: str, traces: list[dict[str, Any]], end: float, vertical: dict[str, Any]
) -> Figure:
    horizontal = axis(
        "optimizer step",
        range=[0.5, end],
        tickformat=",.1~f",
        unifiedhovertitle={"text": "step %{x:,.0f}"},
        showgrid=False,
        zeroline=False,
    )
    layout = {"hovermode": "x unified", "xaxis": horizontal, "yaxis": vertical}
    return Figure(name, title, summary, traces, layout, 300, "step", legend=legend_of(traces), selectable=False)
