"""Tokens per step three ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_efficient.account.rates import per_step
from hf_efficient.records import TokenAccount
from hf_efficient.records.series import StepSeries
from hf_efficient.report.plots.figure import Figure, Missing, axis, legend_of, rounded
from hf_efficient.report.plots.run_axes import StepAxis, step_axis
from hf_efficient.units import count, share

__all__ = ["step_tokens"]

_KINDS = {
    "processed": ("processed, padding included", "#b4b9a0"),
    "non_padding": ("without padding", "#65b5f4"),
    "loss_bearing": ("bearing loss", "#2e548d"),
}


def step_tokens(
    steps: StepSeries, tokens: TokenAccount, kinds: Sequence[str] = tuple(_KINDS), name: str = "step-tokens"
) -> Figure | Missing:
    """Nested areas: what was processed, what of it is no padding, what of that bears loss.

    Args:
        steps: of rank 0.
        tokens: of the run, for the words.
        kinds: which of the three, the outer one first.
        name: id of the figure.
    """
    where = step_axis(steps)
    traces = [
        _area(*_KINDS[kind], per_step(sums, steps), where)
        for kind in kinds
        if any(sums := getattr(steps, f"{kind}_tokens"))
    ]
    if not traces:
        return Missing("Tokens per step", "tokens were not counted" if len(steps) else "no step was recorded")
    told = [f"{count(value)} {_KINDS[kind][0]}" for kind in kinds if (value := getattr(tokens, kind)) is not None]
    is_known = "processed" in kinds and tokens.padding_share is not None
    padding = f" Padding: {share(tokens.padding_share or 0.0)}." if is_known else ""
    return Figure(
        name,
        "Tokens per step",
        f"Each area lies within the one before. Over the run: {', '.join(told)}.{padding}" if told else "",
        traces,
        {
            "hovermode": "x unified",
            "xaxis": where.layout(),
            "yaxis": axis("tokens per step", rangemode="tozero"),
            "shapes": where.resumptions(),
        },
        260,
        "step",
        legend=legend_of(traces),
    )


def _area(label: str, color: str, values: list[float | None], where: StepAxis) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": label,
        "x": rounded(where.centers),
        "y": rounded(values),
        "fill": "tozeroy",
        "fillcolor": color,
        "line": {"color": color, "width": 0, "shape": "hvh"},
        "hovertemplate": "%{y:,.4~s}",
    }
