"""What a finding costs of the training loop, as one bar: the plot of a finding that has no other."""

from __future__ import annotations

from typing import Any

from hf_efficient.records.findings import Finding
from hf_efficient.report.plots.figure import GREEN, GREY, RED, Figure, axis, legend_of
from hf_efficient.report.plots.findings.predicted import predicted_seconds
from hf_efficient.report.plots.run_axes import TimeAxis, time_axis
from hf_efficient.units import seconds, share

__all__ = ["cost_bar"]

_AS_IT_RAN, _WITH = "as it ran", "with remedy 1"


def cost_bar(finding: Finding, loop_seconds: float, name: str) -> Figure | None:
    """The loop's time with the part that the finding costs, above what the first remedy is predicted to leave of it.

    Args:
        finding: of a run.
        loop_seconds: that its costs and gains are held against.
        name: id of the figure.

    Returns:
        None where its cost in time is not known.
    """
    spent = finding.cost.seconds
    if not spent or loop_seconds <= 0:
        return None
    where = time_axis(loop_seconds)
    spent = min(spent, loop_seconds)
    traces = [
        _bar("the rest of the loop", _AS_IT_RAN, loop_seconds - spent, GREY, where),
        _bar("what it costs", _AS_IT_RAN, spent, RED, where),
    ]
    told = f"Of the training loop's {seconds(loop_seconds)} it costs {seconds(spent)}, {share(spent / loop_seconds)}."
    gained = predicted_seconds(finding)
    if gained is not None:
        left = max(loop_seconds - gained, 0.0)
        traces.append(_bar("with the first remedy (estimated)", _WITH, left, GREEN, where))
        told += f" With the first remedy the same training is predicted to take {seconds(left)}."
    rows = [_AS_IT_RAN] if gained is None else [_WITH, _AS_IT_RAN]  # from the bottom up
    layout: dict[str, Any] = {
        "barmode": "stack",
        "bargap": 0.35,
        "hovermode": "closest",
        "xaxis": {**where.layout(), "title": {"text": f"the training loop, {where.unit}", "standoff": 6}},
        "yaxis": axis("", fixedrange=True, categoryorder="array", categoryarray=rows),
    }
    legend = legend_of(traces)
    return Figure(name, "Of the loop's time", told, traces, layout, 84 + 34 * len(rows), legend=legend, zoomable=False)


def _bar(label: str, row: str, value: float, color: str, where: TimeAxis) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": label,
        "x": where.places([value]),
        "y": [row],
        "customdata": [seconds(value)],
        "marker": {"color": color},
        "hovertemplate": "%{customdata}",
    }
