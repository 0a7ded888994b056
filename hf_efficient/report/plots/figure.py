"""What a plot is: traces and a layout of plotly.js, and the words that go with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "ORANGE",
    "PURPLE",
    "RED",
    "Figure",
    "LegendEntry",
    "Missing",
    "axis",
    "legend_of",
    "rounded",
]

_DIGITS = 6

BLUE, ORANGE, GREEN, PURPLE, RED, GREY = "#2383d2", "#de9b24", "#4c8b5d", "#a45fb5", "#de4605", "#7a828c"
"""Colours of lines that are no phase."""


@dataclass(frozen=True)
class LegendEntry:
    """A name of the legend, which shows and hides its traces.

    Attributes:
        name: in words.
        color: as ``#rrggbb``.
        traces: their places among the figure's.
        shown: whether they are drawn at first.
        line: drawn as a line rather than as an area.
        dashed: drawn with gaps.
    """

    name: str
    color: str
    traces: tuple[int, ...]
    shown: bool = True
    line: bool = False
    dashed: bool = False


@dataclass(frozen=True)
class Figure:
    """One plot.

    Attributes:
        id: unique on the page.
        title: above it.
        summary: the plot in a sentence or two, for who does not see it, and below it for everybody.
        traces, layout: of plotly.js, without fonts and colours of the page, which its style gives.
        height: in pixels.
        x: ``step`` or ``time`` where the horizontal axis is the run's: such plots zoom together; None otherwise.
        x_per_second: units of the axis per second of run time, where it is ``time``.
        legend: empty where the table beside it tells the colours.
        zoomable: whether dragging zooms.
        selectable: whether a span can be selected, where ``x`` is the run's.
    """

    id: str
    title: str
    summary: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    height: int = 280
    x: Literal["step", "time"] | None = None
    x_per_second: float | None = None
    legend: list[LegendEntry] = field(default_factory=list)
    zoomable: bool = True
    selectable: bool = True


@dataclass(frozen=True)
class Missing:
    """A plot that cannot be drawn.

    Attributes:
        title: what it would have been.
        why: what is missing.
    """

    title: str
    why: str


def rounded(values: Iterable[float | None]) -> list[float | None]:
    """To six significant digits: more is not seen, and takes room in the file."""
    return [None if value is None else float(f"{value:.{_DIGITS}g}") for value in values]


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with its title; a vertical one starts at 0 unless told otherwise."""
    return {"title": {"text": title, "standoff": 8}, "automargin": True, **more}


def legend_of(traces: Sequence[dict[str, Any]]) -> list[LegendEntry]:
    """An entry per ``legendgroup`` (or name) in the order of the traces; those without a name have none."""
    entries: dict[str, LegendEntry] = {}
    for place, trace in enumerate(traces):
        key = trace.get("legendgroup") or trace.get("name")
        if not key:
            continue
        held = entries.get(key)
        places = (*held.traces, place) if held else (place,)
        first = held or LegendEntry(
            name=trace.get("name", key),
            color=_color(trace),
            traces=places,
            shown=trace.get("visible", True) is True,
            line=trace["type"] == "scatter" and not trace.get("fill") and not trace.get("stackgroup"),
            dashed=trace.get("line", {}).get("dash", "solid") != "solid",
        )
        entries[key] = replace(first, traces=places)
    return list(entries.values())


def _color(trace: dict[str, Any]) -> str:
    for part in ("marker", "line"):
        color = trace.get(part, {}).get("color")
        if isinstance(color, str):
            return color
    return str(trace.get("fillcolor", GREY))
