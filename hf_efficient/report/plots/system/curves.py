"""Several curves of the sampler in one plot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hf_efficient.records.series import SystemSeries
from hf_efficient.report.plots.figure import Figure, axis, legend_of
from hf_efficient.report.plots.run_axes import TimeAxis, upright
from hf_efficient.report.plots.time_lines import time_line

__all__ = ["Curve", "aligned", "curves_figure", "drawn_curves", "known"]

_MARGIN = {"l": 60, "r": 14, "t": 10, "b": 8}
"""In pixels, wide enough for the figures and the title of a vertical axis."""


@dataclass(frozen=True)
class Curve:
    """One quantity.

    Attributes:
        label: in words.
        values: by bucket.
        color: as ``#rrggbb``.
        told: a value, as plotly.js formats it for a pointer.
        scale: what values are multiplied by.
        more: of the trace: a ``stackgroup`` makes it an area on those before.
        dash: of the line.
    """

    label: str
    values: Sequence[float | None]
    color: str
    told: str
    scale: float = 1.0
    more: dict[str, Any] | None = None
    dash: str = "solid"


def drawn_curves(curves: Sequence[Curve], system: SystemSeries, where: TimeAxis) -> list[dict[str, Any]]:
    """Those that were read, and were not 0 all the time."""
    return [
        {**trace, **(one.more or {})}
        for one in curves
        if any(one.values)
        for trace in time_line(
            one.label, one.values, system, where, {"color": one.color, "dash": one.dash}, one.told, one.scale
        )
    ]


def curves_figure(
    name: str,
    title: str,
    summary: str,
    traces: list[dict[str, Any]],
    where: TimeAxis,
    vertical: str,
    starts: Sequence[float] = (),
) -> Figure | None:
    """A plot of them; None where there are none.

    Args:
        name: id of the figure.
        title: above it.
        summary: below it.
        traces: see ``drawn_curves``.
        where: the axis.
        vertical: title of the other one.
        starts: of each process, in run time; later ones are marked.
    """
    if not traces:
        return None
    layout = {
        **aligned(where),
        "yaxis": {**axis(vertical, rangemode="tozero"), "automargin": False},
        "shapes": [upright(at, dash="dash") for at in where.places(list(starts)[1:])],
    }
    legend = legend_of(traces)
    return Figure(name, title, summary, traces, layout, 210, "time", where.per_second, legend, selectable=False)


def aligned(where: TimeAxis, **more: Any) -> dict[str, Any]:
    """Of a layout whose horizontal axis begins and ends where those of the other plots do.

    Its vertical axes must not make room for themselves: ``automargin`` is to be false.

    Args:
        where: the axis.
        more: of the horizontal axis.
    """
    return {"hovermode": "x unified", "margin": _MARGIN, "xaxis": where.layout(**more)}


def known(values: Iterable[float | None]) -> list[float]:
    """Those that were read."""
    return [value for value in values if value is not None]
