"""The two horizontal axes of a run: its optimizer steps, and its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_efficient.records import Evaluation
from hf_efficient.records.series import StepSeries
from hf_efficient.report.plots.figure import GREY, axis

__all__ = ["StepAxis", "TimeAxis", "evaluation_places", "step_axis", "time_axis", "upright"]

_EACH_TICKED = 12


@dataclass(frozen=True)
class StepAxis:
    """Where the buckets of a series lie.

    Attributes:
        starts, ends: of each bucket; a single step N reaches from N - 0.5 to N + 0.5.
        hover: the heading of what a pointer is told.
        title: of the axis.
        resumed_at: where each later ``train()`` call begins.
    """

    starts: list[float]
    ends: list[float]
    hover: str
    title: str
    resumed_at: list[float]

    @property
    def centers(self) -> list[float]:
        """The middle of each bucket."""
        return [(start + end) / 2 for start, end in zip(self.starts, self.ends, strict=True)]

    @property
    def widths(self) -> list[float]:
        """How much of the axis each bucket takes."""
        return [end - start for start, end in zip(self.starts, self.ends, strict=True)]

    def layout(self, **more: Any) -> dict[str, Any]:
        """The axis for plotly.js."""
        ends = [self.starts[0], self.ends[-1]] if self.starts else [0, 1]
        if ends[1] - ends[0] <= _EACH_TICKED:
            more = {"tick0": 1, "dtick": 1} | more
        told = {"text": self.hover}
        return axis(
            self.title,
            **{"range": ends, "tickformat": ",.1~f", "unifiedhovertitle": told, "showgrid": False, "zeroline": False}
            | more,
        )

    def resumptions(self) -> list[dict[str, Any]]:
        """A dashed line where each later ``train()`` call begins."""
        return [upright(at, dash="dash") for at in self.resumed_at]


@dataclass(frozen=True)
class TimeAxis:
    """Run time in the unit that fits it.

    Attributes:
        unit: ``s``, ``min`` or ``h``.
        per_second: of the unit.
        end: of the run.
    """

    unit: str
    per_second: float
    end: float

    def places(self, seconds: Sequence[float]) -> list[float]:
        """Run times on the axis."""
        return [float(f"{value * self.per_second:.7g}") for value in seconds]

    def layout(self, **more: Any) -> dict[str, Any]:
        """The axis for plotly.js."""
        told = {"text": f"%{{x:,.4~g}} {self.unit} after the start"}
        return axis(
            f"time since the start, {self.unit}",
            **{"range": [0, self.end], "unifiedhovertitle": told, "showgrid": False, "zeroline": False} | more,
        )


def step_axis(steps: StepSeries) -> StepAxis:
    """The Trainer's step numbers; or, where a resumed run did steps again, the steps in the order recorded."""
    again = any(first <= last for last, first in zip(steps.last_step, steps.first_step[1:], strict=False))
    starts: list[float] = []
    ends: list[float] = []
    for place, count in enumerate(steps.steps):
        start = ends[-1] if again and ends else steps.first_step[place] - 0.5
        starts.append(start)
        ends.append(start + count)
    most = max(steps.steps, default=1)
    word = "record" if again else "step"
    hover = f"{word} %{{x:,.0f}}" if most == 1 else f"about {word} %{{x:,.0f}}, {most:,} together"
    title = "optimizer steps in the order recorded" if again else "optimizer step"
    new = [place for place in range(1, len(steps)) if steps.segment[place] != steps.segment[place - 1]]
    return StepAxis(starts, ends, hover, title, [starts[place] for place in new])


def time_axis(wall_seconds: float) -> TimeAxis:
    """Seconds for up to five minutes, minutes for up to five hours, hours beyond."""
    for unit, length in (("s", 1.0), ("min", 60.0)):
        if wall_seconds <= 300 * length:
            return TimeAxis(unit, 1 / length, wall_seconds / length)
    return TimeAxis("h", 1 / 3600, wall_seconds / 3600)


def evaluation_places(evaluations: Sequence[Evaluation], steps: StepSeries, where: StepAxis) -> list[float]:
    """Where each evaluation lies: at the end of the step that it followed, or before the first one.

    A step that was done again after a resumption is taken from the first bucket at or after the last evaluation's.
    """
    places: list[float] = []
    bucket = 0
    for evaluation in evaluations:
        found = _bucket_of(evaluation.step, steps, bucket)
        if found is None:
            places.append(where.starts[0] if where.starts and evaluation.step == 0 else evaluation.step + 0.5)
        else:
            bucket = found
            places.append(where.starts[found] + evaluation.step - steps.first_step[found] + 1)
    return places


def _bucket_of(step: int, steps: StepSeries, begin: int) -> int | None:
    for place in (*range(begin, len(steps)), *range(begin)):
        if steps.first_step[place] <= step <= steps.last_step[place]:
            return place
    return None


def upright(at: float, *, dash: str = "dot") -> dict[str, Any]:
    """A thin line from bottom to top."""
    line = {"width": 1, "dash": dash, "color": GREY}
    return {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": at,
        "x1": at,
        "y0": 0,
        "y1": 1,
        "layer": "above",
        "line": line,
    }
