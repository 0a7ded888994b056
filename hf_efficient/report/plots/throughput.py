"""Tokens per second over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_efficient.account.rates import tokens_per_second
from hf_efficient.records import TokenAccount
from hf_efficient.records.series import StepSeries
from hf_efficient.report.plots.figure import BLUE, ORANGE, Figure, Missing, axis, legend_of, rounded
from hf_efficient.report.plots.run_axes import StepAxis, step_axis

__all__ = ["throughput"]

_MARKED = 60


def throughput(steps: StepSeries, tokens: TokenAccount, ranks: int) -> Figure | Missing:
    """Non-padding tokens per second of each step's training, and their mean over the run where rank 0 is all."""
    rates = tokens_per_second(steps)
    if not any(rate is not None for rate in rates):
        return Missing("Throughput", "the tokens of the steps are not known" if len(steps) else "no step was recorded")
    where = step_axis(steps)
    traces = [_line(rates, where, "tokens/s" if ranks <= 1 else "tokens/s of rank 0")]
    mean = tokens.non_padding_tokens_per_second
    if mean is not None and ranks <= 1:
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "over the run",
                "x": [where.starts[0], where.ends[-1]],
                "y": rounded([mean, mean]),
                "line": {"color": ORANGE, "width": 1.5, "dash": "dash"},
                "hoverinfo": "skip",
            }
        )
    told = f" Over the run: {mean:,.0f} per second{' on all ranks' if ranks > 1 else ''}." if mean is not None else ""
    return Figure(
        "throughput",
        "Throughput",
        f"Tokens without padding per second of training, evaluations and checkpoints apart.{told}",
        traces,
        {
            "hovermode": "x unified",
            "xaxis": where.layout(),
            "yaxis": axis("tokens per second", rangemode="tozero"),
            "shapes": where.resumptions(),
        },
        280,
        "step",
        legend=legend_of(traces),
    )


def _line(rates: Sequence[float | None], where: StepAxis, name: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(rates) <= _MARKED else "lines",
        "name": name,
        "x": rounded(where.centers),
        "y": rounded(rates),
        "line": {"color": BLUE, "width": 2},
        "marker": {"color": BLUE, "size": 5},
        "hovertemplate": "%{y:,.4~s}",
    }
