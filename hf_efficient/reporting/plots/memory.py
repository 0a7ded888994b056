"""Memory over the time of a run and over the steps of a plan; accelerators by time and money."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from hf_efficient.records.account import RunAccount
from hf_efficient.records.amounts import MemoryAccount
from hf_efficient.records.plan import Plan, PlannedGpu, PlannedMemory, PlannedSpot, PlannedTimeline
from hf_efficient.records.series import RunSeries
from hf_efficient.reporting.labels import called, category_color, category_label, phase_color, phase_label
from hf_efficient.reporting.plan import peak_phase
from hf_efficient.reporting.plots import figure as draw
from hf_efficient.reporting.plots.figure import Figure, Missing, TimeAxis, Trace
from hf_efficient.reporting.run_rows import memory_peaks
from hf_efficient.text import seconds, size, usd

_TOLD = "%{y:.3~f} GiB"
_STRIP = 0.055  # share of the height that shows the phases
_WIDE = 10.0  # an axis whose largest value is so many times its smallest is logarithmic
_PLACES = ("top center", "bottom center")  # of the names, by turns, so that neighbours have room


def memory_over_time(account: RunAccount, series: RunSeries) -> Figure | Missing:
    """Lines of what was seen about once per second; behind them, while the run trained, the kinds of memory stacked."""
    system = series.system
    where = draw.time_axis(account.time.wall_seconds)
    lines: list[Trace] = []
    for name, label, color, dash in called("memory_curves"):
        style = {"color": color, "dash": dash, "hovertemplate": _TOLD}
        lines += draw.time_line(label, getattr(system, name).high, system, where, 1 / draw.GIB, **style)
    if not lines:
        return Missing("Over time", "no readings were taken during the run; the peaks are in the table")
    levels = _levels(account.memory, series, where)
    traces = [*levels, *lines]
    summary = f"Memory in GiB, as it was read about once per second. Peaks: {memory_peaks(account.memory)}."
    if levels:
        summary += " The areas are the kinds of memory in the table, from the first step on."
    shapes = [draw.upright(at, dash="dash") for at in where.places(series.process_starts_seconds[1:])]
    layout = draw.plane(where.layout(), draw.axis("GiB", rangemode="tozero"), shapes=shapes)
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
    kinds = called("memory_colors")
    known = [name for name in kinds if any(held.categories.get(name, ()))]
    names = [*known, *(name for name in held.categories if name not in kinds)]
    areas = [_kind_area(name, held.events, held.categories[name], hovertemplate=_TOLD) for name in names]
    traces = [*areas, *_strip(held)]
    horizontal = draw.axis("allocations and frees, in order", range=[0, held.events[-1]], anchor="y2")
    upwards = draw.axis("GiB", rangemode="tozero", domain=[_STRIP + 0.03, 1])
    strip = {"visible": False, "fixedrange": True, "domain": [0, _STRIP]}
    shapes = [draw.upright(held.second_step, dash="dash")]
    layout = draw.plane(horizontal, upwards, yaxis2=strip, barmode="stack", bargap=0, shapes=shapes)
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
    is_spot = any(gpu.market == "spot" for gpu in plan.gpus)
    known = [(gpu, point) for gpu in plan.gpus if (point := _point(gpu, gpu, is_spot, plan)) is not None]
    if not known:
        return Missing(title, "of no accelerator that fits are both the time and a price known")
    best = sorted((point for gpu, point in known if gpu.on_frontier), key=lambda point: point.hours)
    others = [point for gpu, point in known if not gpu.on_frontier]
    beside = [] if is_spot else [_point(gpu, gpu.spot, True, plan) for gpu in plan.gpus]
    spot = [point for point in beside if point is not None]
    market = "spot" if is_spot else "on demand"
    joined = {"mode": "lines+markers+text", "line": {"color": draw.BLUE, "width": 1.5}}
    traces = [
        {**_points(best, "the best choices", draw.BLUE), **joined},
        *([_points(others, f"others, {market}", draw.GREY)] if others else []),
        *([_points(spot, "on spot machines", draw.GREEN, "diamond-open")] if spot else []),
    ]
    points = [*best, *others, *spot]
    per = "of the run" if plan.steps is not None else "per million tokens"
    hours = draw.axis(f"hours {per}", **_scale([point.hours for point in points]))
    money = draw.axis(f"USD {per}", **_scale([point.usd for point in points]))
    layout = draw.plane(hours, money, hovermode="closest")
    words = ", ".join(f"{point.name} ({seconds(point.hours * 3600)}, {usd(point.usd)})" for point in best)
    sides = f"Further left is faster, further down is cheaper, {per}."
    summary = f"{sides} Nothing that fits beats both figures of: {words}."
    return Figure("time-money", title, summary, traces, layout, 380)


def _point(gpu: PlannedGpu, paid: PlannedGpu | PlannedSpot | None, is_spot: bool, plan: Plan) -> _Point | None:
    """``paid``: what has the figures of the run or of a million tokens; saves and restarts add to spot machines."""
    if not gpu.fits or gpu.tokens_per_second is None or paid is None or paid.usd_per_million_tokens is None:
        return None
    if plan.steps is not None and paid.run_seconds is not None and paid.run_usd is not None:
        return _Point(gpu.name, paid.run_seconds / 3600, paid.run_usd)
    lost = (gpu.spot.overhead_share if is_spot and gpu.spot is not None else None) or 0.0
    return _Point(gpu.name, 1e6 / gpu.tokens_per_second / 3600 * (1 + lost), paid.usd_per_million_tokens)


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
    return {"type": "log", **draw.log_ticks(low / 2, 2 * high)}
