"""Lines of what the sampler saw, over the time of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_efficient.records.series import SystemSeries
from hf_efficient.report.plots.figure import rounded
from hf_efficient.report.plots.run_axes import TimeAxis

__all__ = ["middles", "time_line"]


def middles(system: SystemSeries, where: TimeAxis) -> list[float]:
    """Of its buckets, on the axis."""
    ends = zip(system.started_at_seconds, system.ended_at_seconds, strict=True)
    return where.places([(start + end) / 2 for start, end in ends])


def time_line(
    label: str,
    values: Sequence[float | None],
    system: SystemSeries,
    where: TimeAxis,
    line: dict[str, Any],
    told: str,
    scale: float = 1.0,
) -> list[dict[str, Any]]:
    """A line that does not join two processes; none where nothing was read.

    Args:
        label: in words.
        values: by bucket.
        system: whose buckets they are.
        where: the axis.
        line: of plotly.js: ``color``, and ``dash`` where it is not solid.
        told: a value, as plotly.js formats it for a pointer.
        scale: what values are multiplied by.
    """
    if not any(value is not None for value in values):
        return []
    x: list[float] = []
    y: list[float | None] = []
    for place, (at, value) in enumerate(zip(middles(system, where), values, strict=True)):
        if place and system.process[place] != system.process[place - 1]:
            x.append(x[-1])
            y.append(None)
        x.append(at)
        y.append(None if value is None else scale * value)
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": label,
            "x": x,
            "y": rounded(y),
            "line": {"width": 2, **line},
            "hovertemplate": told,
        }
    ]
