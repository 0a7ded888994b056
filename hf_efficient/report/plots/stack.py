"""Buckets of a run in layers: bars, or areas where bars would be thinner than a pixel or two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_efficient.account.rates import per_step
from hf_efficient.records.series import StepSeries
from hf_efficient.report.plots.figure import axis, rounded
from hf_efficient.report.plots.run_axes import StepAxis

__all__ = ["Layer", "stack_traces", "step_layer", "step_layout"]

_MOST_BARS = 250


@dataclass(frozen=True)
class Layer:
    """One layer.

    Attributes:
        label: in words.
        color: as ``#rrggbb``.
        values: by bucket.
    """

    label: str
    color: str
    values: Sequence[float | None]


def step_layer(label: str, color: str, sums: Sequence[float], steps: StepSeries) -> Layer:
    """Seconds per step, from their sums by bucket."""
    return Layer(label, color, per_step(sums, steps))


def stack_traces(
    layers: Sequence[Layer], centers: Sequence[float], widths: Sequence[float] | None, told: str = "%{y:.3~s}s"
) -> list[dict[str, Any]]:
    """The layers that hold something, the lowest first.

    Args:
        layers: over the same buckets.
        centers: of the buckets on the horizontal axis.
        widths: of them; None: as they come.
        told: a value, as plotly.js formats it for a pointer.
    """
    held = [layer for layer in layers if any(layer.values)]
    if len(centers) > _MOST_BARS:
        return [_area(layer, centers, told) for layer in held]
    return [_bars(layer, centers, widths, told) for layer in held]


def step_layout(steps: StepSeries, where: StepAxis) -> dict[str, Any]:
    """Of a plot of seconds per step."""
    return {
        "barmode": "stack",
        "bargap": 0.12 if len(steps) <= 60 else 0,
        "hovermode": "x unified",
        "xaxis": where.layout(),
        "yaxis": axis("seconds per step", rangemode="tozero", hoverformat=".3~s", ticksuffix=""),
        "shapes": where.resumptions(),
    }


def _bars(layer: Layer, centers: Sequence[float], widths: Sequence[float] | None, told: str) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": layer.label,
        "x": rounded(centers),
        "y": [value or None for value in rounded(layer.values)],
        "width": None if widths is None else rounded(widths),
        "marker": {"color": layer.color},
        "hovertemplate": told,
    }


def _area(layer: Layer, centers: Sequence[float], told: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "stackgroup": "layers",
        "name": layer.label,
        "x": rounded(centers),
        "y": rounded(layer.values),
        "line": {"width": 0, "shape": "hvh", "color": layer.color},
        "fillcolor": layer.color,
        "hovertemplate": told,
    }
