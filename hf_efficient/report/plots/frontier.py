"""Accelerators by time and money."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_efficient.records.plan import Plan
from hf_efficient.records.planned_gpu import PlannedGpu
from hf_efficient.report.plots.figure import BLUE, GREEN, GREY, Figure, Missing, axis, legend_of, rounded
from hf_efficient.units import seconds, usd

__all__ = ["time_against_money"]

_WIDE = 10.0
"""An axis whose largest value is so many times its smallest is logarithmic."""

_PLACES = ("top center", "bottom center")
"""Of the names, by turns, so that neighbours have room."""


@dataclass(frozen=True)
class _Point:
    name: str
    hours: float
    usd: float


def time_against_money(plan: Plan) -> Figure | Missing:
    """Those that fit: the frontier joined by a line, the others, and the same on spot machines."""
    title = "Time against money"
    known = [(gpu, point) for gpu in plan.gpus if (point := _point(gpu, plan)) is not None]
    if not known:
        return Missing(title, "of no accelerator that fits are both the time and a price known")
    best = sorted((point for gpu, point in known if gpu.on_frontier), key=lambda point: point.hours)
    others = [point for gpu, point in known if not gpu.on_frontier]
    spot = [point for gpu in plan.gpus if (point := _spot_point(gpu, plan)) is not None]
    market = "spot" if plan.gpus[0].market == "spot" else "on demand"
    traces = [
        _trace(best, "the best choices", BLUE, mode="lines+markers+text", line={"color": BLUE, "width": 1.5}),
        *([_trace(others, f"others, {market}", GREY)] if others else []),
        *([_trace(spot, "on spot machines", GREEN, symbol="diamond-open")] if spot else []),
    ]
    points = [*best, *others, *spot]
    per = "of the run" if plan.steps is not None else "per million tokens"
    layout: dict[str, Any] = {
        "hovermode": "closest",
        "xaxis": axis(f"hours {per}", **_scale([point.hours for point in points])),
        "yaxis": axis(f"USD {per}", **_scale([point.usd for point in points])),
    }
    told = ", ".join(f"{point.name} ({seconds(point.hours * 3600)}, {usd(point.usd)})" for point in best)
    summary = (
        f"Further left is faster, further down is cheaper, {per}. Nothing that fits beats both figures of: {told}."
    )
    return Figure("time-money", title, summary, traces, layout, 380, legend=legend_of(traces))


def _point(gpu: PlannedGpu, plan: Plan) -> _Point | None:
    if not gpu.fits or gpu.tokens_per_second is None or gpu.usd_per_million_tokens is None:
        return None
    if plan.steps is not None and gpu.run_seconds is not None and gpu.run_usd is not None:
        return _Point(gpu.name, gpu.run_seconds / 3600, gpu.run_usd)
    lost = gpu.spot.overhead_share if gpu.market == "spot" and gpu.spot is not None else None
    return _Point(gpu.name, _hours_per_million(gpu.tokens_per_second, lost), gpu.usd_per_million_tokens)


def _spot_point(gpu: PlannedGpu, plan: Plan) -> _Point | None:
    spot = gpu.spot
    if gpu.market == "spot" or not gpu.fits or gpu.tokens_per_second is None or spot is None:
        return None
    if plan.steps is not None:
        known = spot.run_seconds is not None and spot.run_usd is not None
        return _Point(gpu.name, (spot.run_seconds or 0.0) / 3600, spot.run_usd or 0.0) if known else None
    if spot.usd_per_million_tokens is None:
        return None
    return _Point(gpu.name, _hours_per_million(gpu.tokens_per_second, spot.overhead_share), spot.usd_per_million_tokens)


def _hours_per_million(tokens_per_second: float, lost: float | None) -> float:
    return 1e6 / tokens_per_second / 3600 * (1 + (lost or 0.0))


def _trace(points: Sequence[_Point], name: str, color: str, symbol: str = "circle", **more: Any) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": rounded(point.hours for point in points),
        "y": rounded(point.usd for point in points),
        "text": [point.name for point in points],
        "textposition": [_PLACES[place % len(_PLACES)] for place in range(len(points))],
        "cliponaxis": False,
        "customdata": [f"{point.name}: {seconds(point.hours * 3600)}, {usd(point.usd)}" for point in points],
        "hovertemplate": "%{customdata}",
        "marker": {"color": color, "size": 9, "symbol": symbol},
        **more,
    }


def _scale(values: Sequence[float]) -> dict[str, Any]:
    """Logarithmic where the values are far apart."""
    low, high = min(values), max(values)
    if not (low > 0 and high / low > _WIDE):
        return {"rangemode": "tozero", "exponentformat": "none"}
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{digit}e{decade}") for decade in decades for digit in (1, 2, 5)]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
