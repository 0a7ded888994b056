"""Throughput against the time of a step: the table for terminal and page, and the curves."""

from collections.abc import Callable, Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from hf_efficient.records.tuning import Sweep, SweepPoint
from hf_efficient.reporting.plots.figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    Figure,
    Missing,
    axis,
    line,
    markers,
)
from hf_efficient.reporting.terminal import FoundTable, drawn
from hf_efficient.text import share, short_seconds, size

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED, GREY)
_CURVES: tuple[tuple[str, str, Callable[[SweepPoint], float | None]], ...] = (
    ("tokens_per_second", "tokens/s without padding", lambda one: one.tokens_per_second),
    ("p50", "median of a step, seconds", lambda one: one.p50_seconds),
    ("p95", "p95 of a step, seconds", lambda one: one.p95_seconds),
    ("p99", "p99 of a step, seconds", lambda one: one.p99_seconds),
    ("memory", "peak memory, GiB", lambda one: None if one.peak_bytes is None else one.peak_bytes / 2**30),
    ("mfu", "MFU, %", lambda one: None if one.mfu is None else 100 * one.mfu),
)


def sweep_table(found: Sweep) -> FoundTable:
    headings = ["rows x length", "tokens/s", "p50", "p95", "p99", "memory", "MFU", "padding", ""]
    return FoundTable(headings, [_cells(one) for one in found.points], "Points", words=(0, 8))


def _cells(one: SweepPoint) -> list[str]:
    name = f"{one.rows} x {one.length}"
    if one.tokens_per_second is None:
        return [name, *["-"] * 7, one.why]
    seconds = [short_seconds(value or 0.0) for value in (one.p50_seconds, one.p95_seconds, one.p99_seconds)]
    memory = "-" if one.peak_bytes is None else size(one.peak_bytes)
    mfu = "-" if one.mfu is None else share(one.mfu)
    knee = "knee" if one.knee else ""
    return [name, f"{one.tokens_per_second:,.0f}", *seconds, memory, mfu, f"{one.padding_share or 0:.0%}", knee]


def answer(found: Sweep) -> str:
    """The largest throughput, with its p95 under the limit where there is one."""
    limit = found.p95_limit_seconds
    under = "" if limit is None else f" with a p95 of a step under {short_seconds(limit)}"
    one = found.largest
    if one is None:
        return f"no point has a throughput{under}"
    rate, p95 = f"{one.tokens_per_second or 0:,.0f} tokens/s", short_seconds(one.p95_seconds or 0.0)
    return f"the largest throughput{under}: {rate} at {one.rows} x {one.length}, p95 {p95}"


def sweep_notes(found: Sweep) -> Iterator[str]:
    steps = [one.steps for one in found.points if one.steps]
    yield f"{min(steps)} steps or more of each point, after two of warm-up; so few steps know little of their p99"
    yield "knee: the smallest micro-batch with 90% of the best tokens/s at its length. Accumulation is the recipe's"


def sweep_renderables(found: Sweep) -> list[RenderableType]:
    return [
        Text(f"{found.recipe}: {answer(found)}", "bold"),
        Text(),
        drawn(sweep_table(found)),
        Text(),
        *(Text(f"{note[:1].upper()}{note[1:]}.", "dim") for note in sweep_notes(found)),
    ]


def sweep_figures(found: Sweep) -> list[Figure | Missing]:
    """A curve for each length, against the micro-batch; knees stand out."""
    return [_figure(name, title, value, found.points) for name, title, value in _CURVES if _known(value, found.points)]


def _known(value: Callable[[SweepPoint], float | None], points: Sequence[SweepPoint]) -> bool:
    return any(value(one) is not None for one in points)


def _figure(name: str, title: str, value: Callable[[SweepPoint], float | None], points: Sequence[SweepPoint]) -> Figure:
    traces = []
    lengths = list(dict.fromkeys(one.length for one in points))
    for place, length in enumerate(lengths):
        held = [one for one in points if one.length == length and value(one) is not None]
        colour, label = _COLOURS[place % len(_COLOURS)], f"{length} tokens"
        traces.append(line(label, [one.rows for one in held], [value(one) for one in held], colour, legendgroup=label))
        knees = [one for one in held if one.knee]
        traces.append(
            markers("knee", [one.rows for one in knees], [value(one) for one in knees], colour, 11, legendgroup=label)
        )
    layout = {
        "xaxis": axis("rows in a micro-batch", type="log", dtick=0.30103),
        "yaxis": axis(title, rangemode="tozero"),
    }
    return Figure(f"sweep_{name}", title[:1].upper() + title[1:], "Marked points are knees.", traces, layout)
