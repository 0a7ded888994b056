"""What a plot is: traces and a layout of plotly.js, and the words that go with them; the axes and lines of a run."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hf_efficient.records.account import StepSeries, SystemSeries
from hf_efficient.records.amounts import Evaluation
from hf_efficient.reporting.labels import phase_color, phase_label

# Colours of lines that are no phase.
BLUE, ORANGE, GREEN, PURPLE, RED, GREY = "#2383d2", "#de9b24", "#4c8b5d", "#a45fb5", "#de4605", "#7a828c"
GIB = 2**30
Trace = dict[str, Any]
Values = Sequence[float | None]
Curves = Iterable[Sequence[str]]
_DIGITS = 6
_EACH_TICKED = 12
_MOST_BARS = 250
_POWERS_DIVIDED = 3


@dataclass(frozen=True)
class Figure:
    """One plot: traces and layout of plotly.js without fonts and colours of the page, which its style gives."""

    id: str  # unique on the page
    title: str
    summary: str  # the plot in a sentence or two, for who does not see it, and below it for everybody
    traces: list[Trace]
    layout: dict[str, Any]
    height: int = 280  # in pixels
    x: Literal["step", "time"] | None = None  # where the axis is the run's: such plots zoom together, and select a span
    x_per_second: float | None = None  # units of the axis per second of run time, where it is ``time``
    selectable: bool = True

    @property
    def legend(self) -> list[dict[str, Any]]:
        """Per name: its colour, how it is drawn, and the places of its traces, which it shows and hides."""
        entries: dict[str, dict[str, Any]] = {}
        for place, trace in enumerate(self.traces):
            name = trace.get("legendgroup") or trace.get("name")
            if name:
                entry = {
                    "name": trace.get("name", name),
                    "color": (trace.get("marker") or trace["line"])["color"],
                    "traces": [],
                    "line": trace["type"] == "scatter" and not trace.get("fill") and not trace.get("stackgroup"),
                    "dashed": trace.get("line", {}).get("dash", "solid") != "solid",
                }
                entries.setdefault(name, entry)["traces"].append(place)
        return list(entries.values())


@dataclass(frozen=True)
class Missing:
    title: str
    why: str


def rounded(values: Iterable[float | None]) -> list[float | None]:
    """To six significant digits: more is not seen, and takes room in the file."""
    return [None if value is None else float(f"{value:.{_DIGITS}g}") for value in values]


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title, "standoff": 8}, "automargin": True, **more}


def plane(x: dict[str, Any], y: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A layout by its two axes."""
    return {"hovermode": "x unified", "xaxis": x, "yaxis": y, **more}


def line(label: str, x: Sequence[Any], y: Iterable[float | None], color: str, **more: Any) -> Trace:
    """``width`` and ``dash`` are the line's own, everything else the trace's."""
    style = {"color": color, "width": more.pop("width", 2)}
    if "dash" in more:
        style["dash"] = more.pop("dash")
    return {"type": "scatter", "mode": "lines", "name": label, "x": list(x), "y": rounded(y), "line": style, **more}


def level(label: str, ends: Sequence[float], at: float, color: str, **more: Any) -> Trace:
    """A straight line that shows nothing under the pointer."""
    return line(label, ends, [at, at], color, hoverinfo="skip", **more)


def markers(label: str, x: Sequence[Any], y: Iterable[float | None], color: str, size: int, **more: Any) -> Trace:
    marker = {"color": color, "size": size, **more.pop("marker", {})}
    return {"type": "scatter", "mode": "markers", "name": label, "x": x, "y": rounded(y), "marker": marker, **more}


def area(label: str, x: Sequence[Any], y: Iterable[float | None], color: str, **more: Any) -> Trace:
    """``shape`` is the edge's, everything else the trace's."""
    edge = {"width": 0, **({"shape": more.pop("shape")} if "shape" in more else {}), "color": color}
    return {**line(label, x, y, color), "line": edge, "fillcolor": color, **more}


@dataclass(frozen=True)
class StepAxis:
    """Places of the buckets; a single step N reaches from N - 0.5 to N + 0.5. Later ``train()``: ``resumed_at``."""

    starts: list[float]
    ends: list[float]
    hover: str
    title: str
    resumed_at: list[float]

    @property
    def centers(self) -> list[float]:
        return [(start + end) / 2 for start, end in zip(self.starts, self.ends, strict=True)]

    @property
    def widths(self) -> list[float]:
        return [end - start for start, end in zip(self.starts, self.ends, strict=True)]

    def layout(self, **more: Any) -> dict[str, Any]:
        ends = [self.starts[0], self.ends[-1]] if self.starts else [0, 1]
        if ends[1] - ends[0] <= _EACH_TICKED:
            more = {"tick0": 1, "dtick": 1} | more
        own = {"range": ends, "tickformat": ",.1~f", "unifiedhovertitle": {"text": self.hover}}
        return axis(self.title, **own | {"showgrid": False, "zeroline": False} | more)

    def resumptions(self) -> list[dict[str, Any]]:
        return [upright(at, dash="dash") for at in self.resumed_at]


@dataclass(frozen=True)
class TimeAxis:
    """Run time in the unit that fits it: ``s``, ``min`` or ``h``, of which ``per_second`` are in a second."""

    unit: str
    per_second: float
    end: float

    def places(self, seconds: Sequence[float]) -> list[float]:
        return [float(f"{value * self.per_second:.7g}") for value in seconds]

    def layout(self, **more: Any) -> dict[str, Any]:
        own = {"range": [0, self.end], "unifiedhovertitle": {"text": f"%{{x:,.4~g}} {self.unit} after the start"}}
        return axis(f"time since the start, {self.unit}", **own | {"showgrid": False, "zeroline": False} | more)


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
    """The place of each evaluation: at the end of the step that it followed, or before the first one. A step done again
    after a resumption is taken from the first bucket at or after the last evaluation's."""
    places: list[float] = []
    bucket = 0
    for step in (evaluation.step for evaluation in evaluations):
        order = (*range(bucket, len(steps)), *range(bucket))
        found = next((place for place in order if steps.first_step[place] <= step <= steps.last_step[place]), None)
        if found is None:
            places.append(where.starts[0] if where.starts and step == 0 else step + 0.5)
        else:
            bucket = found
            places.append(where.starts[found] + step - steps.first_step[found] + 1)
    return places


def log_ticks(low: float, high: float) -> dict[str, Any]:
    """Numbers written out at 1, 2 and 5 of each power of ten, of many powers at 1: the library shortens 20 to 2."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(powers) <= _POWERS_DIVIDED else (1,)
    values = [value for power in powers for step in steps if low <= (value := float(f"{step}e{power}")) <= high]
    return {"tickvals": values, "ticktext": [f"{value:g}" for value in values]}


def upright(at: float, *, dash: str = "dot") -> dict[str, Any]:
    ends = {"x0": at, "x1": at, "y0": 0, "y1": 1}
    style = {"width": 1, "dash": dash, "color": GREY}
    return {"type": "line", "xref": "x", "yref": "paper", **ends, "layer": "above", "line": style}


def stack_traces(
    layers: Sequence[tuple[str, str, Values]], centers: Sequence[float], widths: Sequence[float] | None, hover: str
) -> list[Trace]:
    """The layers (label, colour, values) that hold something, the lowest first: bars, or areas where bars would be
    thinner than a pixel or two. ``hover`` formats a value for the pointer, as plotly.js writes it."""
    held = [layer for layer in layers if any(layer[2])]
    x = rounded(centers)
    if len(centers) > _MOST_BARS:
        style = {"shape": "hvh", "stackgroup": "layers", "hovertemplate": hover}
        return [area(label, x, values, color, **style) for label, color, values in held]
    bars = {"type": "bar", "x": x, "width": None if widths is None else rounded(widths), "hovertemplate": hover}
    return [
        {**bars, "name": label, "marker": {"color": color}, "y": [value or None for value in rounded(values)]}
        for label, color, values in held
    ]


def over_each_other(
    panels: Sequence[tuple[str, list[Trace]]], domains: Sequence[tuple[float, float]], **vertical: Any
) -> tuple[list[Trace], dict[str, Any]]:
    """Traces, and a layout without its horizontal axis, of panels from the top; ``domains``: of the height of each."""
    traces: list[Trace] = []
    layout: dict[str, Any] = {"hovermode": "x unified", "hoversubplots": "axis", "grid": {}}
    for number, ((title, rows), domain) in enumerate(zip(panels, domains, strict=True), start=1):
        suffix = "" if number == 1 else str(number)
        traces += [{**trace, "yaxis": f"y{suffix}"} for trace in rows]
        layout[f"yaxis{suffix}"] = axis(title, domain=list(domain), **vertical)
    return traces, layout


def middles(system: SystemSeries, where: TimeAxis) -> list[float]:
    ends = zip(system.started_at_seconds, system.ended_at_seconds, strict=True)
    return where.places([(start + end) / 2 for start, end in ends])


def time_lines(
    curves: Curves, held: Mapping[str, Values], run: SystemSeries, where: TimeAxis, hover: str, **more: Any
) -> list[Trace]:
    """A line for each key, name, colour and perhaps dash; none of what was not read, or was 0 all the time. ``scale``
    is what the values are multiplied by, everything else the trace's."""
    scale, at = more.pop("scale", 1.0), middles(run, where)
    traces: list[Trace] = []
    parts = [place for place in range(1, len(run)) if run.process[place] != run.process[place - 1]]
    for key, label, color, *dash in curves:
        if any(values := held.get(key, ())):
            x, y = list(at), [None if value is None else scale * value for value in values]
            for place in reversed(parts):  # no line from one process to the next
                x.insert(place, at[place - 1])
                y.insert(place, None)
            style = {"dash": dash[0]} if dash else {}
            traces.append(line(label, x, y, color, hovertemplate=hover, **style, **more))
    return traces


def span_data(steps: StepSeries) -> dict[str, Any] | None:
    """What the page needs for the figures of a selected span: columns by bucket, and their places on both axes."""
    if not len(steps):
        return None
    where = step_axis(steps)
    return {
        "start": where.starts,
        "end": where.ends,
        "at": steps.started_at_seconds,
        "wall": steps.wall_seconds,
        "training": [mean * count for mean, count in zip(steps.step_seconds_mean, steps.steps, strict=True)],
        "steps": steps.steps,
        "first": steps.first_step,
        "last": steps.last_step,
        "tokens": steps.non_padding_tokens,
        "processed": steps.processed_tokens,
        "loss": steps.loss,
        "phases": [
            {"label": phase_label(name), "color": phase_color(name), "seconds": sums}
            for name, sums in steps.phase_seconds.items()
            if any(sums)
        ],
    }
