"""Memory over the time of a run and over the steps of a plan; accelerators by time and money."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from hf_efficient.records.account import RunAccount
from hf_efficient.records.amounts import MemoryAccount
from hf_efficient.records.plan import Plan, PlannedGpu, PlannedMemory, PlannedTimeline
from hf_efficient.records.series import RunSeries
from hf_efficient.reporting.labels import CATEGORY_COLORS, category_color, category_label, phase_color, phase_label
from hf_efficient.reporting.plan import peak_phase
from hf_efficient.reporting.plots import figure as draw
from hf_efficient.reporting.plots.figure import Figure, Missing, TimeAxis, Trace
from hf_efficient.reporting.run_rows import memory_peaks
from hf_efficient.text import seconds, size, usd

_TOLD = "%{y:.3~f} GiB"
_LINES = (
    ("device_reserved_bytes", "reserved on the device", "#c2410c", "dot"),
    ("device_allocated_bytes", "allocated on the device", "#c2410c", "solid"),
    ("rss_bytes", "host memory of the process", "#2b62b5", "solid"),
)
_STRIP = 0.055  # share of the height that shows the phases
_WIDE = 10.0  # an axis whose largest value is so many times its smallest is logarithmic
_PLACES = ("top center", "bottom center")  # of the names, by turns, so that neighbours have room


def memory_over_time(account: RunAccount, series: RunSeries, *, kinds: bool = True) -> Figure | Missing:
    """Lines of what was seen about once per second; behind them, while the run trained, the kinds of memory stacked."""
    system = series.system
    where = draw.time_axis(account.time.wall_seconds)
    lines: list[Trace] = []
    for name, label, color, dash in _LINES:
        style = {"color": color, "dash": dash, "hovertemplate": _TOLD}
        lines += draw.time_line(label, getattr(system, name).high, system, where, 1 / draw.GIB, **style)
    if not lines:
        return Missing("Over time", "no readings were taken while the run went on; the peaks are in the table")
    levels = _levels(account.memory, series, where) if kinds else []
    traces = [*levels, *lines]
    summary = f"Memory in GiB, as it was read about once per second. Peaks: {memory_peaks(account.memory)}."
    if levels:
        summary += " The areas are the kinds of memory in the table, from the first step on."
    layout: dict[str, Any] = {
        "hovermode": "x unified",
        "xaxis": where.layout(),
        "yaxis": draw.axis("GiB", rangemode="tozero"),
        "shapes": [draw.upright(at, dash="dash") for at in where.places(series.process_starts_seconds[1:])],
    }
    return Figure("memory-time", "Over time", summary, traces, layout, 300, "time", where.per_second)


def _levels(memory: MemoryAccount, series: RunSeries, where: TimeAxis) -> list[Trace]:
    if not memory.categories or not len(series.steps):
        return []
    stretches = _trained(series, where)
    x = [end for start, end in stretches for end in (start, start, end, end)]
    shape = [0.0, 1.0, 1.0, 0.0] * len(stretches)
    kinds = [kind for kind in memory.categories if kind.bytes > 0]
    return [_kind_area(kind.name, x, [kind.bytes * on for on in shape], hoverinfo="skip") for kind in kinds]


def _kind_area(name: str, x: Sequence[float], sizes: Sequence[float], **more: Any) -> Trace:
    gib = [held / draw.GIB for held in sizes]
    return draw.area(category_label(name), x, gib, category_color(name), stackgroup="kinds", **more)


def _trained(series: RunSeries, where: TimeAxis) -> list[tuple[float, float]]:
    starts = series.process_starts_seconds or [0.0]
    ends = [*starts[1:], where.end / where.per_second]
    found = []
    for start, end in zip(starts, ends, strict=True):
        first = next((at for at in series.steps.started_at_seconds if start <= at < end), None)
        if first is not None:
            found.append((where.places([first])[0], where.places([end])[0]))
    return found


def planned_memory_over_steps(memory: PlannedMemory) -> Figure | Missing:
    """The kinds of memory stacked over allocations and frees of two steps, and below them a strip of the phases."""
    held = memory.timeline
    if held is None or not held.events:
        return Missing("Over two steps", "this plan was made without it")
    known = [name for name in CATEGORY_COLORS if any(held.categories.get(name, ()))]
    names = [*known, *(name for name in held.categories if name not in CATEGORY_COLORS)]
    areas = [_kind_area(name, held.events, held.categories[name], hovertemplate=_TOLD) for name in names]
    traces = [*areas, *_strip(held)]
    layout: dict[str, Any] = {
        "hovermode": "x unified",
        "barmode": "stack",
        "bargap": 0,
        "xaxis": draw.axis("allocations and frees, in order", range=[0, held.events[-1]], anchor="y2"),
        "yaxis": draw.axis("GiB", rangemode="tozero", domain=[_STRIP + 0.03, 1]),
        "yaxis2": {"visible": False, "fixedrange": True, "domain": [0, _STRIP]},
        "shapes": [draw.upright(held.second_step, dash="dash")],
    }
    return Figure("planned-memory", "Over two steps", _summary(memory, held), traces, layout, 340)


def _summary(memory: PlannedMemory, held: PlannedTimeline) -> str:
    where = peak_phase(memory, "of the second step")
    behind = ", and a batch of an evaluation behind them" if "evaluation" in held.phases else ""
    return (
        f"The first two optimizer steps, parted by the dashed line{behind}; it is no axis of time, as some allocations "
        f"follow each other faster than others. Most is allocated in the {where}: {size(memory.peak_allocated_bytes)}. "
        "The strip below shows the phases."
    )


def _strip(held: PlannedTimeline) -> list[Trace]:
    """A bar per stretch of one phase; what is computed again belongs to the backward that asks for it."""
    found: list[Trace] = []
    end = 0
    phases = ["backward" if phase == "recompute" else phase for phase in held.phases]
    for phase, group in itertools.groupby(zip(phases, held.events, strict=True), key=lambda pair: pair[0]):
        start, end = end, [event for _, event in group][-1]
        label = phase_label(phase)
        drawn = draw.bar(label, phase_color(phase), [end - start], [""], [""])
        found.append({**drawn, "legendgroup": label, "yaxis": "y2", "hoverinfo": "skip", "hovertemplate": None})
    return found


class _Point(NamedTuple):
    name: str
    hours: float
    usd: float


def time_against_money(plan: Plan) -> Figure | Missing:
    title = "Time against money"
    known = [(gpu, point) for gpu in plan.gpus if (point := _point(gpu, plan)) is not None]
    if not known:
        return Missing(title, "of no accelerator that fits are both the time and a price known")
    best = sorted((point for gpu, point in known if gpu.on_frontier), key=lambda point: point.hours)
    others = [point for gpu, point in known if not gpu.on_frontier]
    spot = [point for gpu in plan.gpus if (point := _spot_point(gpu, plan)) is not None]
    market = "spot" if plan.gpus[0].market == "spot" else "on demand"
    joined = {"mode": "lines+markers+text", "line": {"color": draw.BLUE, "width": 1.5}}
    traces = [
        {**_points(best, "the best choices", draw.BLUE), **joined},
        *([_points(others, f"others, {market}", draw.GREY)] if others else []),
        *([_points(spot, "on spot machines", draw.GREEN, "diamond-open")] if spot else []),
    ]
    points = [*best, *others, *spot]
    per = "of the run" if plan.steps is not None else "per million tokens"
    layout: dict[str, Any] = {
        "hovermode": "closest",
        "xaxis": draw.axis(f"hours {per}", **_scale([point.hours for point in points])),
        "yaxis": draw.axis(f"USD {per}", **_scale([point.usd for point in points])),
    }
    words = ", ".join(f"{point.name} ({seconds(point.hours * 3600)}, {usd(point.usd)})" for point in best)
    sides = f"Further left is faster, further down is cheaper, {per}."
    summary = f"{sides} Nothing that fits beats both figures of: {words}."
    return Figure("time-money", title, summary, traces, layout, 380)


def _point(gpu: PlannedGpu, plan: Plan) -> _Point | None:
    if not gpu.fits or gpu.tokens_per_second is None or gpu.usd_per_million_tokens is None:
        return None
    if plan.steps is not None and gpu.run_seconds is not None and gpu.run_usd is not None:
        return _Point(gpu.name, gpu.run_seconds / 3600, gpu.run_usd)
    lost = gpu.spot.overhead_share if gpu.market == "spot" and gpu.spot is not None else None
    return _Point(gpu.name, _hours_per_million(gpu.tokens_per_second, lost), gpu.usd_per_million_tokens)


def _spot_point(gpu: PlannedGpu, plan: Plan) -> _Point | None:
    spot = gpu.spot
    if gpu.market == "spot" or not gpu.fits or gpu.tokens_per_second is None or spot is None:
        return None
    if plan.steps is not None:
        known = spot.run_seconds is not None and spot.run_usd is not None
        return _Point(gpu.name, (spot.run_seconds or 0.0) / 3600, spot.run_usd or 0.0) if known else None
    if spot.usd_per_million_tokens is None:
        return None
    return _Point(gpu.name, _hours_per_million(gpu.tokens_per_second, spot.overhead_share), spot.usd_per_million_tokens)


def _hours_per_million(tokens_per_second: float, lost: float | None) -> float:
    return 1e6 / tokens_per_second / 3600 * (1 + (lost or 0.0))


def _points(points: Sequence[_Point], name: str, color: str, symbol: str = "circle") -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": draw.rounded(point.hours for point in points),
        "y": draw.rounded(point.usd for point in points),
        "text": [point.name for point in points],
        "textposition": [_PLACES[place % len(_PLACES)] for place in range(len(points))],
        "cliponaxis": False,
        "customdata": [f"{point.name}: {seconds(point.hours * 3600)}, {usd(point.usd)}" for point in points],
        "hovertemplate": "%{customdata}",
        "marker": {"color": color, "size": 9, "symbol": symbol},
    }


def _scale(values: Sequence[float]) -> dict[str, Any]:
    low, high = min(values), max(values)
    if not (low > 0 and high / low > _WIDE):
        return {"rangemode": "tozero", "exponentformat": "none"}
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{digit}e{decade}") for decade in decades for digit in (1, 2, 5)]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
