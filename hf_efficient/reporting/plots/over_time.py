"""Over the time of a run, on one axis that zooms as one: its memory, and what the sampler saw of the machine. Memory
over the steps of a plan; accelerators by time and money."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hf_efficient.records.account import Band, RunAccount, RunSeries, SystemSeries
from hf_efficient.records.amounts import MemoryAccount
from hf_efficient.records.plan import Plan, PlannedGpu, PlannedMemory, PlannedSpot, PlannedTimeline
from hf_efficient.reporting.labels import called, category_color, category_label, phase_color, phase_label, short_number
from hf_efficient.reporting.plan import peak_phase
from hf_efficient.reporting.plots import figure as draw
from hf_efficient.reporting.plots.figure import Figure, Missing, TimeAxis, Trace
from hf_efficient.reporting.run_rows import memory_peaks
from hf_efficient.text import seconds, share, size, usd

_TOLD = "%{y:.3~f} GiB"
_STRIP = 0.055  # share of the height that shows the phases
_WIDE = 10.0  # an axis whose largest value is so many times its smallest is logarithmic
_PLACES = ("top center", "bottom center")  # of the names, by turns, so that neighbours have room


def memory_over_time(account: RunAccount, series: RunSeries) -> Figure | Missing:
    """Lines of what was seen about once per second; behind them, while the run trained, the kinds of memory stacked."""
    system = series.system
    where = draw.time_axis(account.time.wall_seconds)
    seen = {name: getattr(system, name).high for name, *_ in called("memory_curves")}
    lines = draw.time_lines(called("memory_curves"), seen, system, where, _TOLD, scale=1 / draw.GIB)
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
        drawn = {"type": "bar", "orientation": "h", "name": label, "y": [""], "x": [end - start], "yaxis": "y2"}
        found.append({**drawn, "marker": {"color": phase_color(phase)}, "legendgroup": label, "hoverinfo": "skip"})
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
    hours, money = draw.rounded(point.hours for point in points), [point.usd for point in points]
    told = [f"{point.name}: {seconds(point.hours * 3600)}, {usd(point.usd)}" for point in points]
    hover = {"customdata": told, "hovertemplate": "%{customdata}"}
    places = [_PLACES[place % len(_PLACES)] for place in range(len(points))]
    named = {"text": [point.name for point in points], "textposition": places, "cliponaxis": False}
    return draw.markers(name, hours, money, color, 9, marker={"symbol": symbol}, **named, **hover)


def _scale(values: Sequence[float]) -> dict[str, Any]:
    low, high = min(values), max(values)
    if not (low > 0 and high / low > _WIDE):
        return {"rangemode": "tozero", "exponentformat": "none"}
    return {"type": "log", **draw.log_ticks(low / 2, 2 * high)}


_MB = 1e6
_MARGIN = {"l": 60, "r": 14, "t": 10, "b": 8}  # in pixels, wide enough for the figures and the title of a vertical axis
_BROWN, _NAVY = "#823f35", "#2e548d"
_METERS = (draw.RED, draw.BLUE, draw.GREEN, draw.PURPLE, draw.ORANGE, _BROWN, _NAVY, draw.GREY)
NOT_READ = "the sampler read nothing of it"
_READ = "Between readings about a second apart; the mean where several are put together."
_GAP = 0.06


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _means(bands: Mapping[str, Band]) -> dict[str, draw.Values]:
    return {key: band.mean for key, band in bands.items()}


def _aligned(where: TimeAxis, series: RunSeries, **more: Any) -> dict[str, Any]:
    """A layout with the horizontal axis of the other plots, as long as ``automargin`` is false."""
    shapes = [draw.upright(at, dash="dash") for at in where.places(series.process_starts_seconds[1:])]
    return {"hovermode": "x unified", "margin": _MARGIN, "xaxis": where.layout(**more), "shapes": shapes}


def _figure(
    name: str, title: str, summary: str, traces: list[Trace], where: TimeAxis, series: RunSeries, vertical: str
) -> Figure | None:
    if not traces:
        return None
    upwards = {**draw.axis(vertical, rangemode="tozero"), "automargin": False}
    layout = {**_aligned(where, series), "yaxis": upwards}
    return Figure(name, title, summary, traces, layout, 210, "time", where.per_second, selectable=False)


def phases_over_time(account: RunAccount, series: RunSeries) -> Figure | Missing:
    steps = series.steps
    if not len(steps):
        return Missing("Phases", "no step was recorded")
    where = draw.time_axis(account.time.wall_seconds)
    layers = []
    for name, sums in steps.phase_seconds.items():
        times = zip(sums, steps.wall_seconds, strict=True)
        percents = [100 * held / wall if wall > 0 else None for held, wall in times]
        layers.append((phase_label(name), phase_color(name), percents))
    pairs = zip(steps.started_at_seconds, steps.wall_seconds, strict=True)
    centers = where.places([start + wall / 2 for start, wall in pairs])
    traces = draw.stack_traces(layers, centers, where.places(steps.wall_seconds), "%{y:.3~g}%")
    upwards = {**draw.axis("% of the time", range=[0, 100]), "automargin": False}
    layout = {"barmode": "stack", "bargap": 0, **_aligned(where, series), "shapes": [], "yaxis": upwards}
    summary = "What each optimizer step was spent on. Before the first and after the last one the run starts and ends."
    return Figure("phases-time", "Phases", summary, traces, layout, 190, "time", where.per_second)


def cores_figure(account: RunAccount, series: RunSeries, cpus: int | None) -> Figure | None:
    system, where = series.system, draw.time_axis(account.time.wall_seconds)
    means, stacked = _means(system.host), {"stackgroup": "cores", "width": 0}
    cores = draw.time_lines(called("cores"), means, system, where, "%{y:.3~g} cores", **stacked)
    traces = [{**one, "fillcolor": one["line"]["color"]} for one in cores]
    load = ("load_1_minute", "load average, 1 minute", draw.GREY, "dot")
    traces += draw.time_lines([load], means, system, where, "%{y:.3~g}")
    summary = f"Cores in use, and by whom.{_most(system.host, called('cores'))}"
    waits = _known(system.host.get("main_thread_core_wait", Band()).mean)
    if any(waits):
        summary += f" The main thread waited for a core in up to {share(max(waits))} of its time."
    if traces and cpus:
        traces.append(draw.level("all cores", [0, where.end], cpus, draw.RED, width=1.5, dash="dash"))
    summary += f" The machine has {cpus:,}." if cpus else ""
    return _figure("system-cores", "Processor", summary, traces, where, series, "cores")


def _most(host: Mapping[str, Band], curves: draw.Curves, scale: float = 1.0, unit: str = "") -> str:
    held = [(label, _known(host.get(key, Band()).high)) for key, label, *_ in curves]
    most = [f"{label} {short_number(scale * max(highs))}{unit}" for label, highs in held if any(highs)]
    return f" At most: {', '.join(most)}." if most else ""


def flow_figure(account: RunAccount, series: RunSeries, name: str, title: str) -> Figure | Missing:
    system, where = series.system, draw.time_axis(account.time.wall_seconds)
    flows = called("flows")[name]
    traces = draw.time_lines(flows, _means(system.host), system, where, "%{y:,.3~g} MB/s", scale=1 / _MB)
    summary = _READ + _most(system.host, flows, 1 / _MB, " MB/s")
    waits = _known(system.host.get("disk_latency_milliseconds", Band()).high) if name == "system-disks" else []
    summary += f" A request took {max(waits):,.3g} ms at most, on average over a reading." if waits else ""
    looked = any(key in system.host for key, *_ in flows)
    nothing = Missing(title, "nothing moved" if looked else NOT_READ)
    return _figure(name, title, summary, traces, where, series, "MB/s") or nothing


def gpu_figure(account: RunAccount, series: RunSeries, gpu: str, name: str) -> Figure | None:
    system, where = series.system, draw.time_axis(account.time.wall_seconds)
    bands = system.gpus.get(gpu, {})
    panels = [(title, traces) for title, traces in _panels(bands, system, gpu, where) if traces]
    if not panels:
        return None
    height = (1 - _GAP * (len(panels) - 1)) / len(panels)
    lows = [max(0.0, 1 - (place + 1) * height - place * _GAP) for place in range(len(panels))]
    domains = [(round(low, 4), round(low + height, 4)) for low in lows]
    drawn, layout = draw.over_each_other(panels, domains, nticks=4, rangemode="tozero", automargin=False)
    layout |= _aligned(where, series, anchor="free", position=0)
    summary = f"Read about once per second.{_most_gpu(bands)}{_held_back(system, gpu)}"
    pixels, unit = 90 + 92 * len(panels), where.per_second
    return Figure(name, f"GPU {gpu}", summary, drawn, layout, pixels, "time", unit, selectable=False)


def _panels(bands: dict[str, Band], system: SystemSeries, gpu: str, where: TimeAxis) -> list[tuple[str, list[Trace]]]:
    means = _means({**bands, "": system.watts.get(f"GPU {gpu}", Band())})
    found: list[tuple[str, list[Trace]]] = []
    for unit, curves in called("gpu_curves").items():
        scale = 1 / draw.GIB if unit == "GiB" else 1.0
        traces = draw.time_lines(curves, means, system, where, f"%{{y:,.4~g}} {unit}", scale=scale)
        if unit == "MHz" and traces:
            traces += _marks(bands.get("sm_clock_mhz", Band()), system, gpu, where)
        found.append((unit, traces))
    return found


def _marks(clock: Band, system: SystemSeries, gpu: str, where: TimeAxis) -> list[Trace]:
    reasons, named = system.throttled.get(gpu, {}), called("throttles")
    held_back = [
        [f"{named.get(why, why)} {share(shares[place])}" for why, shares in reasons.items() if shares[place] > 0]
        for place in range(len(system))
    ]
    places = [place for place, words in enumerate(held_back) if words and clock.mean and clock.mean[place] is not None]
    if not places:
        return []
    at = draw.middles(system, where)
    x, y = [at[place] for place in places], [clock.mean[place] for place in places]
    words = [", ".join(held_back[place]) for place in places]
    return [draw.markers("held back", x, y, draw.RED, 6, customdata=words, hovertemplate="%{customdata} of the time")]


def _most_gpu(bands: dict[str, Band]) -> str:
    busy = _known(bands.get("utilization_percent", Band()).mean)
    warm = _known(bands.get("temperature_celsius", Band()).high)
    parts = [f"{sum(busy) / len(busy):.0f}% utilization on average"] if busy else []
    parts += [f"{max(warm):.0f} °C at most"] if warm else []
    return f" {', '.join(parts)}." if parts else ""


def _held_back(system: SystemSeries, gpu: str) -> str:
    means = {why: sum(shares) / len(shares) for why, shares in system.throttled.get(gpu, {}).items() if sum(shares)}
    named = called("throttles")
    reasons = ", ".join(f"{named.get(why, why)} in {share(mean)}" for why, mean in means.items())
    return f" It was held back by {reasons} of the readings." if reasons else ""


def power(account: RunAccount, series: RunSeries) -> Figure | Missing:
    system = series.system
    if not system.watts:
        return Missing("Power", "no meter reported its power during the run")
    where = draw.time_axis(account.time.wall_seconds)
    meters = [(name, name, color) for name, color in zip(system.watts, itertools.cycle(_METERS), strict=False)]
    traces = draw.time_lines(meters, _means(system.watts), system, where, "%{y:.4~g} W")
    layout = draw.plane(where.layout(), draw.axis("W", rangemode="tozero"))
    summary = f"Watts as read about once per second: {', '.join(system.watts)}."
    return Figure("power", "Power", summary, traces, layout, 240, "time", where.per_second)
