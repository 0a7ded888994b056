"""The phases that a finding is about, step by step, against everything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_efficient.records import StepTimes
from hf_efficient.records.findings import Finding
from hf_efficient.records.series import StepSeries
from hf_efficient.report.phases import phase_color, phase_label
from hf_efficient.report.plots.figure import GREEN, RED, Figure, legend_of, rounded
from hf_efficient.report.plots.findings.predicted import predicted_seconds
from hf_efficient.report.plots.run_axes import StepAxis, step_axis
from hf_efficient.report.plots.stack import stack_traces, step_layer, step_layout
from hf_efficient.report.run_data import RunData
from hf_efficient.units import share, short_seconds

__all__ = ["phase_evidence"]

_ROOM = 1.3
_PAUSES = ("evaluation", "checkpointing")
_REST_COLOR = "#b3bac4"


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
    parts = _parts(run, phases)
    if parts is None:
        return None
    steps = parts.steps
    where = step_axis(steps)
    layers = [step_layer("everything else", _REST_COLOR, parts.rest, steps)]
    layers += [step_layer(phase_label(one), phase_color(one), sums, steps) for one, sums in parts.held.items()]
    widths = where.widths if max(steps.steps) > 1 else None
    gained = predicted_seconds(finding)
    after = None if gained is None or gained >= parts.whole else (parts.whole - gained) / parts.count
    mean = parts.whole / parts.count
    traces = [*stack_traces(layers, where.centers, widths), *_means(mean, after, where)]
    layout = step_layout(steps, where)
    top, clipped = _top(parts, run.account.steps)
    layout["yaxis"]["range"] = [0, top]
    told = f"{_named(parts.held)} {share(sum(parts.spent) / parts.whole)} of a mean of {short_seconds(mean)} per step."
    if after is not None:
        told += f" With the first remedy that mean is predicted to be {short_seconds(after)}."
    if parts.left_out:
        told += f" Left out: {', '.join(map(phase_label, parts.left_out))}."
    if clipped:
        told += " Some steps reach above the plot, by something else."
    legend = legend_of(traces)
    return Figure(name, "Seconds per step", told, traces, layout, 260, "step", legend=legend, selectable=False)


@dataclass(frozen=True)
class _Parts:
    """The steps by what the finding is about; sums by bucket.

    Attributes:
        held: its phases, those that occurred.
        spent: all of them together.
        rest: everything else.
        left_out: pauses that are in neither.
    """

    steps: StepSeries
    held: dict[str, list[float]]
    spent: list[float]
    rest: list[float]
    left_out: list[str]

    @property
    def whole(self) -> float:
        return sum(self.spent) + sum(self.rest)

    @property
    def count(self) -> int:
        return sum(self.steps.steps)


def _parts(run: RunData, phases: Sequence[str]) -> _Parts | None:
    if run.series is None:
        return None
    steps = run.series.steps
    known = {one: sums for one, sums in steps.phase_seconds.items() if any(sums)}
    held = {one: known[one] for one in phases if one in known}
    if not held:
        return None
    left_out = [one for one in _PAUSES if one in known and one not in held]
    places = range(len(steps))
    spent = [sum(sums[place] for sums in held.values()) for place in places]
    paused = [sum(known[one][place] for one in left_out) for place in places]
    rest = [max(steps.wall_seconds[place] - paused[place] - spent[place], 0.0) for place in places]
    return _Parts(steps, held, spent, rest, left_out)


def _named(held: dict[str, list[float]]) -> str:
    names = [phase_label(one) for one in held]
    words = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{words[0].upper()}{words[1:]} {'takes' if len(names) == 1 else 'take'}"


def _top(parts: _Parts, times: StepTimes) -> tuple[float, bool]:
    """As high as nearly every step, and as the finding's phases at their most on such a step; whether that clips."""
    counts = parts.steps.steps
    spent = [seconds / count for seconds, count in zip(parts.spent, counts, strict=True)]
    totals = [more + seconds / count for more, seconds, count in zip(spent, parts.rest, counts, strict=True)]
    usual = _ROOM * times.p95_seconds if times.p95_seconds else max(totals)
    most = max(zip(spent, totals, strict=True))
    top = max(usual, 1.05 * min(most[1], most[0] + usual))
    return min(top, 1.05 * max(totals)), max(totals) > top


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
