"""Seconds per optimizer step in layers: bars, or areas where bars would be thinner than a pixel or two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_efficient.account.rates import per_step
from hf_efficient.records import StepTimes
from hf_efficient.records.series import StepSeries
from hf_efficient.report.plots.figure import axis, rounded
from hf_efficient.report.plots.run_axes import StepAxis

__all__ = ["StepLayer", "stack_layout", "stack_traces", "usual_height"]

_MOST_BARS = 250
_ROOM = 1.3


@dataclass(frozen=True)
class StepLayer:
    """One layer.

    Attributes:
        label: in words.
        color: as ``#rrggbb``.
        sums: seconds by bucket.
    """

    label: str
    color: str
    sums: Sequence[float]


def stack_traces(layers: Sequence[StepLayer], steps: StepSeries, where: StepAxis) -> list[dict[str, Any]]:
    """The layers that hold something, the lowest first."""
    draw = _bars if len(steps) <= _MOST_BARS else _area
    return [draw(layer, steps, where) for layer in layers if any(layer.sums)]


def stack_layout(steps: StepSeries, where: StepAxis) -> dict[str, Any]:
    """Of a plot of them."""
    return {
        "barmode": "stack",
        "bargap": 0.12 if len(steps) <= 60 else 0,
        "hovermode": "x unified",
        "xaxis": where.layout(),
        "yaxis": axis("seconds per step", rangemode="tozero", hoverformat=".3~s", ticksuffix=""),
        "shapes": where.resumptions(),
    }


def usual_height(steps: StepSeries, times: StepTimes) -> float:
    """A height that shows the training of nearly every step."""
    return _ROOM * times.p99_seconds if times.p99_seconds else max(steps.step_seconds_mean)


def _trace(layer: StepLayer, where: StepAxis) -> dict[str, Any]:
    return {"name": layer.label, "x": rounded(where.centers), "hovertemplate": "%{y:.3~s}s"}


def _bars(layer: StepLayer, steps: StepSeries, where: StepAxis) -> dict[str, Any]:
    values = rounded(per_step(layer.sums, steps))
    return {
        **_trace(layer, where),
        "type": "bar",
        "y": [value or None for value in values],
        "width": where.widths if max(steps.steps) > 1 else None,
        "marker": {"color": layer.color},
    }


def _area(layer: StepLayer, steps: StepSeries, where: StepAxis) -> dict[str, Any]:
    return {
        **_trace(layer, where),
        "type": "scatter",
        "mode": "lines",
        "stackgroup": "phases",
        "y": rounded(per_step(layer.sums, steps)),
        "line": {"width": 0, "shape": "hvh", "color": layer.color},
        "fillcolor": layer.color,
    }
