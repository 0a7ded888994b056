"""Loss, learning rate and gradient norm over the steps, with the evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_efficient.records import Evaluation
from hf_efficient.records.series import StepSeries
from hf_efficient.report.plots.figure import BLUE, GREEN, ORANGE, PURPLE, Figure, Missing, axis, legend_of, rounded
from hf_efficient.report.plots.run_axes import StepAxis, evaluation_places, step_axis, upright

__all__ = ["training_curve"]

_HEIGHTS = {1: ((0.0, 1.0),), 2: ((0.36, 1.0), (0.0, 0.26)), 3: ((0.5, 1.0), (0.26, 0.42), (0.0, 0.18))}
_MARKED = 60
_DENSE = 400


def training_curve(steps: StepSeries, evaluations: Sequence[Evaluation]) -> Figure | Missing:
    """The logged loss (with its least and most where steps are put together), and below it what else was logged."""
    where = step_axis(steps)
    losses = _losses(steps, where) + _evaluated(evaluations, steps, where)
    others = [
        (values, label, color)
        for values, label, color in (
            (steps.learning_rate, "learning rate", GREEN),
            (steps.grad_norm, "gradient norm", ORANGE),
        )
        if any(value is not None for value in values)
    ]
    if not losses and not others:
        return Missing("Loss", "no loss was logged; train.logging_steps says how often it is")
    heights = _HEIGHTS[bool(losses) + len(others)]
    layout: dict[str, Any] = {"hovermode": "x unified", "hoversubplots": "axis", "grid": {}}
    traces, panels = list(losses), [("loss", losses)] if losses else []
    for values, label, color in others:
        row = [_line(values, label, color, where)]
        traces += row
        panels.append((label, row))
    for number, ((title, rows), domain) in enumerate(zip(panels, heights, strict=True), start=1):
        suffix = "" if number == 1 else str(number)
        for trace in rows:
            trace["yaxis"] = f"y{suffix}"
        layout[f"yaxis{suffix}"] = axis(
            title, domain=list(domain), nticks=6 if number == 1 else 3, exponentformat="power"
        )
    layout["xaxis"] = where.layout(anchor="free", position=0)
    marked = evaluation_places(evaluations, steps, where) if len(evaluations) <= _MARKED else []
    layout["shapes"] = where.resumptions() + [upright(at) for at in marked]
    return Figure(
        "training-curve",
        " and ".join(_titles([title for title, _ in panels])),
        _summary(steps, evaluations),
        traces,
        layout,
        200 + 90 * len(panels),
        "step",
        legend=legend_of(traces),
    )


def _titles(titles: list[str]) -> list[str]:
    words = [", ".join(titles[:-1]), titles[-1]] if len(titles) > 1 else titles
    return [words[0].capitalize(), *words[1:]]


def _line(values: Sequence[float | None], label: str, color: str, where: StepAxis) -> dict[str, Any]:
    known = [(at, value) for at, value in zip(where.ends, values, strict=True) if value is not None]
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(known) <= _MARKED else "lines",
        "name": label,
        "x": rounded(at - 0.5 for at, _ in known),
        "y": rounded(value for _, value in known),
        "line": {"color": color, "width": 2 if len(known) <= _DENSE else 1.2},
        "marker": {"color": color, "size": 5},
        "hovertemplate": "%{y:.4~g}",
    }


def _losses(steps: StepSeries, where: StepAxis) -> list[dict[str, Any]]:
    if not any(value is not None for value in steps.loss):
        return []
    line = _line(steps.loss, "training loss", BLUE, where)
    if steps.loss_min == steps.loss_max:
        return [line]
    low, high = (_line(values, "", BLUE, where) for values in (steps.loss_min, steps.loss_max))
    for edge in (low, high):
        edge |= {"mode": "lines", "line": {"width": 0, "color": BLUE}, "hoverinfo": "skip", "hovertemplate": None}
        edge["legendgroup"] = ""
    high |= {"fill": "tonexty", "fillcolor": "rgba(35, 131, 210, 0.22)"}
    return [low, high, line]


def _evaluated(evaluations: Sequence[Evaluation], steps: StepSeries, where: StepAxis) -> list[dict[str, Any]]:
    places = evaluation_places(evaluations, steps, where)
    told = [
        (at, each.step, loss)
        for at, each in zip(places, evaluations, strict=True)
        if (loss := each.metrics.get("loss")) is not None
    ]
    if not told:
        return []
    return [
        {
            "type": "scatter",
            "mode": "lines+markers" if len(told) <= _MARKED else "lines",
            "name": "evaluation loss",
            "x": rounded(at for at, _, _ in told),
            "y": rounded(loss for _, _, loss in told),
            "customdata": [f"after step {step:,}" if step else "before training" for _, step, _ in told],
            "line": {"color": PURPLE, "width": 1.5, "dash": "dot" if len(told) <= _MARKED else "solid"},
            "marker": {"color": PURPLE, "size": 9, "symbol": "diamond"},
            "cliponaxis": False,
            "hovertemplate": "%{y:.4~g} %{customdata}",
        }
    ]


def _summary(steps: StepSeries, evaluations: Sequence[Evaluation]) -> str:
    known = [value for value in steps.loss if value is not None]
    told = []
    if known:
        told.append(f"The training loss, as the Trainer logged it: first {known[0]:.4g}, last {known[-1]:.4g}.")
    losses = [(each.step, loss) for each in evaluations if (loss := each.metrics.get("loss")) is not None]
    if losses:
        ends = losses[:1] + losses[1:][-1:]
        words = [f"{loss:.4g} {f'after step {step:,}' if step else 'before training'}" for step, loss in ends]
        told.append(f"On the evaluation data: {', '.join(words)}.")
    if 0 < len(evaluations) <= _MARKED:
        told.append("Dotted lines are evaluations.")
    broken = sum(steps.not_finite)
    if broken:
        told.append(f"{broken:,} of the logged losses and gradient norms are no finite number, and are not drawn.")
    return " ".join(told)
