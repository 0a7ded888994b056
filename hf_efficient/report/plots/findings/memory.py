"""Memory over the time of a run against what there is of it."""

from __future__ import annotations

import dataclasses
from typing import Any

from hf_efficient.records.findings import Finding
from hf_efficient.report.plots.figure import PURPLE, Figure, legend_of, rounded
from hf_efficient.report.plots.memory import GIB, memory_over_time
from hf_efficient.report.run_data import RunData
from hf_efficient.units import size

__all__ = ["memory_evidence"]


def memory_evidence(finding: Finding, run: RunData, name: str) -> Figure | None:
    """What was read about once per second, with a line at the memory of the device, or of the host where that trains.

    Args:
        finding: of the run.
        run: with its series.
        name: id of the figure.

    Returns:
        None where nothing was read.
    """
    if run.series is None:
        return None
    found = memory_over_time(run.account, run.series, kinds=False)
    if not isinstance(found, Figure):
        return None
    held = dataclasses.replace(found, id=name, title="Memory over the run", height=260, selectable=False)
    limit = run.memory_bytes
    if limit is None:
        return held
    traces = [*found.traces, _limit(limit, found.layout["xaxis"]["range"])]
    summary = f"{found.summary} The line on top is all that there is: {size(limit)}."
    return dataclasses.replace(held, traces=traces, summary=summary, legend=legend_of(traces))


def _limit(limit: int, ends: list[float]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "all that there is",
        "x": ends,
        "y": rounded([limit / GIB] * 2),
        "line": {"color": PURPLE, "width": 1.5, "dash": "dash"},
        "hoverinfo": "skip",
    }
