"""The phases that a finding is about, step by step, against everything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_efficient.records.findings import Finding
from hf_efficient.records.series import StepSeries
from hf_efficient.report.phases import phase_color, phase_label
from hf_efficient.report.plots.figure import GREEN, RED, Figure, legend_of, rounded
from hf_efficient.report.plots.findings.predicted import predicted_seconds
from hf_efficient.report.plots.run_axes import StepAxis, step_axis
from hf_efficient.report.plots.step_stack import StepLayer, stack_layout, stack_traces, usual_height
from hf_efficient.report.run_data import RunData
from hf_efficient.units import share, short_seconds

__all__ = ["phase_evidence"]

_PAUSES = ("evaluation", "checkpointing")
_REST_COLOR = "#c3c9d1"


def phase_evidence(finding: Finding, run: RunData, name: str, *, phases: Sequence[str]) -> Figure | None:
    """Seconds per step with the finding's phases on top, their mean, and the mean that the first remedy would leave.

    Evaluations and checkpoints are left out where the finding is not about them: they would tower over the steps.

    Args:
        finding: of the run.
        run: with its series.
        name: id of the figure.
        phases: that the finding is about.

    Returns:
        None where none of these phases was seen.
    """
    steps = run.series.steps if run.series is not None else None
    held = {} if steps is None else {one: sums for one in phases if any(sums := steps.phase_seconds.get(one, []))}
    if steps is None or not held:
        return None
    where = step_axis(steps)
    rest = _rest(steps, held)
    layers = [StepLayer("everything else", _REST_COLOR, rest)]
    layers += [StepLayer(phase_label(one), phase_color(one), sums) for one, sums in held.items()]
    spent = sum(map(sum, held.values()))
    whole, count = sum(rest) + spent, sum(steps.steps)
    gained = predicted_seconds(finding)
    after = None if gained is None or gained >= whole else (whole - gained) / count
    traces = [*stack_traces(layers, steps, where), *_means(whole / count, after, where)]
    layout = stack_layout(steps, where)
    layout["yaxis"]["range"] = [0, _top(steps, run, rest, list(held.values()))]
    told = f"{_named(held)} {share(spent / whole)} of a mean of {short_seconds(whole / count)} per step."
    if after is not None:
        told += f" With the first remedy that mean is predicted to be {short_seconds(after)}."
    if apart := _left_out(steps, held):
        told += f" Left out: {', '.join(map(phase_label, apart))}."
    legend = legend_of(traces)
    return Figure(name, "Per step", told, traces, layout, 260, "step", legend=legend, selectable=False)


def _left_out(steps: StepSeries, held: dict[str, list[float]]) -> dict[str, list[float]]:
    """Pauses that the finding is not about."""
    others = {one: steps.phase_seconds.get(one, []) for one in _PAUSES if one not in held}
    return {one: sums for one, sums in others.items() if any(sums)}


def _rest(steps: StepSeries, held: dict[str, list[float]]) -> list[float]:
    """What each bucket took beside these phases and the pauses."""
    apart = [*held.values(), *_left_out(steps, held).values()]
    return [max(wall - sum(sums[place] for sums in apart), 0.0) for place, wall in enumerate(steps.wall_seconds)]


def _named(held: dict[str, list[float]]) -> str:
    names = [phase_label(one) for one in held]
    words = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{words[0].upper()}{words[1:]} {'takes' if len(names) == 1 else 'take'}"


def _top(steps: StepSeries, run: RunData, rest: list[float], held: list[list[float]]) -> float:
    """As high as nearly every step, and as the bucket that has most of the finding's phases."""
    each = [(sum(sums[place] for sums in held), place) for place in range(len(steps))]
    most, place = max(each)
    return max(usual_height(steps, run.account.steps), 1.05 * (most + rest[place]) / steps.steps[place])


def _means(now: float, after: float | None, where: StepAxis) -> list[dict[str, Any]]:
    lines = [("mean", now, RED, "dot")]
    lines += [] if after is None else [("mean with the first remedy (estimated)", after, GREEN, "dash")]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": label,
            "x": [where.starts[0], where.ends[-1]],
            "y": rounded([value, value]),
            "line": {"color": color, "width": 2, "dash": dash},
            "hoverinfo": "skip",
        }
        for label, value, color, dash in lines
    ]
