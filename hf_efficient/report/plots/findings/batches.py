"""What a step takes over the tokens that it holds: what is paid for a batch whatever is in it."""

from __future__ import annotations

from typing import Any

import numpy as np

from hf_efficient.account.rates import per_step
from hf_efficient.estimate.batch_time import batch_time
from hf_efficient.records.findings import Finding
from hf_efficient.records.series import StepSeries
from hf_efficient.report.plots.figure import BLUE, RED, Figure, axis, legend_of, rounded
from hf_efficient.report.run_data import RunData
from hf_efficient.units import short_seconds

__all__ = ["batch_evidence"]

_COMPUTING = ("forward", "backward", "device_wait", "forward_backward")
_FEWEST = 3
_ROOM = 1.15
_MOST = 0.98
"""Quantile of the times that has the height: a few slow steps do not flatten the others."""


def batch_evidence(finding: Finding, run: RunData, name: str) -> Figure | None:
    """A point per step, and the line through them down to a step without tokens.

    Args:
        finding: of the run.
        run: with its series.
        name: id of the figure.

    Returns:
        None where tokens or times are not known, or no line can be told.
    """
    points = None if run.series is None else _points(run.series.steps)
    if points is None:
        return None
    tokens, seconds = points
    line = batch_time(seconds, tokens)
    if line is None:
        return None
    end = float(tokens.max())
    ends = [line.fixed_seconds, line.fixed_seconds + line.token_seconds * end]
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "steps",
            "x": rounded(tokens.tolist()),
            "y": rounded(seconds.tolist()),
            "marker": {"color": BLUE, "size": 5, "opacity": 0.6},
            "hovertemplate": "%{x:,.4~s} tokens: %{y:.3~s}s",
        },
        {
            "type": "scatter",
            "mode": "lines",
            "name": "the line through them",
            "x": rounded([0.0, end]),
            "y": rounded(ends),
            "line": {"color": RED, "width": 2, "dash": "dash"},
            "hoverinfo": "skip",
        },
    ]
    top = _ROOM * max(float(np.quantile(seconds, _MOST)), *ends)
    layout = {
        "hovermode": "closest",
        "xaxis": axis("tokens of a step, padding included", range=[0, _ROOM * end], zeroline=False),
        "yaxis": axis("seconds, forward and backward", range=[0, top], hoverformat=".3~s"),
    }
    told = (
        f"Forward and backward of each step over its tokens. Where the line meets the left edge, at "
        f"{short_seconds(line.fixed_seconds)}, is what a step takes whatever it holds."
    )
    return Figure(name, "Time over tokens", told, traces, layout, 260, legend=legend_of(traces))


def _points(steps: StepSeries) -> tuple[Any, Any] | None:
    """Tokens and seconds of a step, by bucket."""
    known = [steps.phase_seconds[one] for one in _COMPUTING if one in steps.phase_seconds]
    tokens = per_step(steps.processed_tokens, steps)
    seconds = per_step([sum(sums) for sums in zip(*known, strict=True)], steps)
    pairs = [(one, two) for one, two in zip(tokens, seconds, strict=False) if one and two]
    if len(pairs) < _FEWEST:
        return None
    columns = np.asarray(pairs, dtype=float)
    return columns[:, 0], columns[:, 1]
