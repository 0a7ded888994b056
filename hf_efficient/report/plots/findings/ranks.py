"""The ranks of a run beside each other: which one the others wait for."""

from __future__ import annotations

from typing import Any

from hf_efficient.records import PHASES
from hf_efficient.records.findings import Finding
from hf_efficient.report.phases import phase_color, phase_label
from hf_efficient.report.plots.figure import Figure, axis, legend_of, rounded
from hf_efficient.report.run_data import RunData
from hf_efficient.units import short_seconds

__all__ = ["rank_evidence"]

_PAUSES = ("evaluation", "checkpointing")


def rank_evidence(finding: Finding, run: RunData, name: str) -> Figure | None:
    """Mean seconds of a step by phase, a bar per rank; evaluations and checkpoints are left out.

    Args:
        finding: of the run.
        run: with the seconds of its ranks.
        name: id of the figure.

    Returns:
        None where the steps of one rank at most are known.
    """
    ranks = {rank: held for rank, held in sorted(run.rank_step_seconds.items()) if held}
    if len(ranks) < 2:
        return None
    labels = [f"rank {rank}" for rank in ranks]
    known = {one for held in ranks.values() for one, value in held.items() if value > 0 and one not in _PAUSES}
    names = [one for one in PHASES if one in known] + sorted(known - set(PHASES))
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": phase_label(one),
            "y": labels,
            "x": rounded(held.get(one, 0.0) for held in ranks.values()),
            "customdata": [short_seconds(held.get(one, 0.0)) for held in ranks.values()],
            "marker": {"color": phase_color(one)},
            "hovertemplate": "%{customdata}",
        }
        for one in names
    ]
    layout: dict[str, Any] = {
        "barmode": "stack",
        "bargap": 0.25,
        "hovermode": "closest",
        "xaxis": axis("mean seconds of a step", rangemode="tozero"),
        "yaxis": axis("", fixedrange=True, type="category", autorange="reversed"),
    }
    told = "Where a mean step of each rank went, evaluations and checkpoints left out."
    height = 80 + min(36 * len(ranks), 560)
    return Figure(name, "By rank", told, traces, layout, height, legend=legend_of(traces), zoomable=False)
