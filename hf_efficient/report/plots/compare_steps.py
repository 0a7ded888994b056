"""One quantity over the steps of several runs, over each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    return _over_steps(
        series,
        labels,
        lambda steps: steps.loss,
        Figure("compare-loss", "Training loss", "As the Trainer logged it.", [], {}),
        "loss",
        "%{y:.4~g}",
    )


def compare_step_times(series: Sequence[StepSeries | None], labels: Sequence[str]) -> Figure | Missing:
    """The time of each step without its evaluation and checkpointing."""
    figure = Figure("compare-step-times", "Step times", "Evaluations and checkpoints apart.", [], {})
    return _over_steps(
        series, labels, lambda steps: list(steps.step_seconds_mean), figure, "seconds per step", "%{y:.3~s}s"
    )


def _over_steps(
    series: Sequence[StepSeries | None],
    labels: Sequence[str],
    read: Callable[[StepSeries], Sequence[float | None]],
    figure: Figure,
    title: str,
    told: str,
) -> Figure | Missing:
    traces: list[dict[str, Any]] = []
    ends = [0.5]
    for place, (steps, label) in enumerate(zip(series, labels, strict=True)):
        values = read(steps) if steps is not None else []
        if steps is None or all(value is None for value in values):
            continue
        where = step_axis(steps)
        known = [(at, value) for at, value in zip(where.centers, values, strict=True) if value is not None]
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
    if not traces:
        return Missing(figure.title, "no run has records of it")
    left_out = len(labels) - len(traces)
    summary = figure.summary + (f" {left_out} of the runs have no records of it." if left_out else "")
    top = max(ends)
    layout = {
        "hovermode": "x unified",
        "xaxis": axis(
            "optimizer step",
            range=[0.5, top],
            tickformat=",.1~f",
            unifiedhovertitle={"text": "step %{x:,.0f}"},
            showgrid=False,
            zeroline=False,
        ),
        "yaxis": axis(title, **({"rangemode": "tozero"} if "seconds" in title else {})),
    }
    return Figure(
        figure.id, figure.title, summary, traces, layout, 300, "step", legend=legend_of(traces), selectable=False
    )
