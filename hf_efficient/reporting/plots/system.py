"""Several curves of the sampler in one plot.

Who kept the cores of the machine busy.

What went through disks and network, and the memory that the machine had left.

What a GPU did over the time of a run, and what held it back.

Which phase the run was in, over its time: what the curves of the machine stand below.

Power over the time of a run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hf_efficient.records.account import RunAccount
from hf_efficient.records.series import Band, RunSeries, StepSeries, SystemSeries
from hf_efficient.reporting.labels import phase_color, phase_label, short_number
from hf_efficient.reporting.plots.figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    Figure,
    Layer,
    Missing,
    TimeAxis,
    axis,
    legend_of,
    middles,
    rounded,
    stack_traces,
    time_axis,
    time_line,
    upright,
)
from hf_efficient.text import share, size

_MARGIN = {"l": 60, "r": 14, "t": 10, "b": 8}
"""In pixels, wide enough for the figures and the title of a vertical axis."""


@dataclass(frozen=True)
class Curve:
    """One quantity.

    Attributes:
        label: in words.
        values: by bucket.
        color: as ``#rrggbb``.
        told: a value, as plotly.js formats it for a pointer.
        scale: what values are multiplied by.
        more: of the trace: a ``stackgroup`` makes it an area on those before.
        dash: of the line.
    """

    label: str
    values: Sequence[float | None]
    color: str
    told: str
    scale: float = 1.0
    more: dict[str, Any] | None = None
    dash: str = "solid"


def drawn_curves(curves: Sequence[Curve], system: SystemSeries, where: TimeAxis) -> list[dict[str, Any]]:
    """Those that were read, and were not 0 all the time."""
    return [
        {**trace, **(one.more or {})}
        for one in curves
        if any(one.values)
        for trace in time_line(
            one.label, one.values, system, where, {"color": one.color, "dash": one.dash}, one.told, one.scale
        )
    ]


def curves_figure(
    name: str,
    title: str,
    summary: str,
    traces: list[dict[str, Any]],
    where: TimeAxis,
    vertical: str,
    starts: Sequence[float] = (),
) -> Figure | None:
    """A plot of them; None where there are none.

    Args:
        name: id of the figure.
        title: above it.
        summary: below it.
        traces: see ``drawn_curves``.
        where: the axis.
        vertical: title of the other one.
        starts: of each process, in run time; later ones are marked.
    """
    if not traces:
        return None
    layout = {
        **aligned(where),
        "yaxis": {**axis(vertical, rangemode="tozero"), "automargin": False},
        "shapes": [upright(at, dash="dash") for at in where.places(list(starts)[1:])],
    }
    legend = legend_of(traces)
    return Figure(name, title, summary, traces, layout, 210, "time", where.per_second, legend, selectable=False)


def aligned(where: TimeAxis, **more: Any) -> dict[str, Any]:
    """Of a layout whose horizontal axis begins and ends where those of the other plots do.

    Its vertical axes must not make room for themselves: ``automargin`` is to be false.

    Args:
        where: the axis.
        more: of the horizontal axis.
    """
    return {"hovermode": "x unified", "margin": _MARGIN, "xaxis": where.layout(**more)}


def known(values: Iterable[float | None]) -> list[float]:
    """Those that were read."""
    return [value for value in values if value is not None]


_STACKED = (
    ("process_cores", "this process", BLUE),
    ("children_cores", "its workers", GREEN),
    ("ranks_cores", "other ranks", PURPLE),
    ("other_cores", "others on the machine", ORANGE),
)


def cores_figure(account: RunAccount, series: RunSeries, cpus: int | None, name: str = "system-cores") -> Figure | None:
    """Areas of cores in use, the load average over them, and a line at all that there are.

    Args:
        account, series: of the run.
        cpus: of the machine; None: not known.
        name: id of the figure.

    Returns:
        None where nothing was read.
    """
    system, where = series.system, time_axis(account.time.wall_seconds)
    stacked = [
        Curve(label, band.mean, color, "%{y:.3~g} cores", more={"stackgroup": "cores", "fillcolor": color})
        for key, label, color in _STACKED
        if (band := system.host.get(key)) is not None
    ]
    load = system.host.get("load_1_minute", Band())
    lines = [Curve("load average, 1 minute", load.mean, GREY, "%{y:.3~g}", dash="dot")]
    traces = [*drawn_curves(stacked, system, where), *drawn_curves(lines if load.mean else [], system, where)]
    for trace in traces:
        if "stackgroup" in trace:
            trace["line"] = {**trace["line"], "width": 0}
    if traces and cpus:
        traces.append(_all(cpus, where))
    told = f"Cores in use, and by whom.{_most(system.host)}{f' The machine has {cpus:,}.' if cpus else ''}"
    return curves_figure(name, "Processor", told, traces, where, "cores", series.process_starts_seconds)


def _most(host: dict[str, Band]) -> str:
    held = [(label, known(host.get(key, Band()).high)) for key, label, _ in _STACKED]
    most = [(label, highs) for label, highs in held if any(highs)]
    told = f" At most: {', '.join(f'{label} {short_number(max(highs))}' for label, highs in most)}." if most else ""
    waits = known(host.get("main_thread_core_wait", Band()).mean)
    if waits and max(waits) > 0:
        told += f" The main thread waited for a core in up to {share(max(waits))} of its time."
    return told


def _all(cpus: int, where: TimeAxis) -> dict[str, object]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "all cores",
        "x": [0, where.end],
        "y": rounded([cpus, cpus]),
        "line": {"color": RED, "width": 1.5, "dash": "dash"},
        "hoverinfo": "skip",
    }


_GIB, _MB = 2**30, 1e6
_READ = "Between readings about a second apart; the mean where several are put together."
_DISKS = (
    ("disk_read_bytes_per_second", "read, all of the machine", BLUE, "solid"),
    ("disk_write_bytes_per_second", "written, all of the machine", ORANGE, "solid"),
    ("read_bytes_per_second", "read by this run", GREEN, "dot"),
    ("write_bytes_per_second", "written by this run", PURPLE, "dot"),
)
_NETWORK = (
    ("network_received_bytes_per_second", "received", BLUE, "solid"),
    ("network_sent_bytes_per_second", "sent", ORANGE, "solid"),
)


def disk_figure(account: RunAccount, series: RunSeries) -> Figure | None:
    """MB per second from and to disks; None where nothing went through them, or nobody looked."""
    waits = known(series.system.host.get("disk_latency_milliseconds", Band()).high)
    slow = f" A request took {max(waits):,.3g} ms at most, on average over a reading." if waits else ""
    return _flows(account, series, _DISKS, "system-disks", "Disks", slow)


def network_figure(account: RunAccount, series: RunSeries) -> Figure | None:
    """MB per second through the network; None where nothing went through it, or nobody looked."""
    return _flows(account, series, _NETWORK, "system-network", "Network", "")


def _flows(
    account: RunAccount,
    series: RunSeries,
    kinds: Sequence[tuple[str, str, str, str]],
    name: str,
    title: str,
    more: str,
) -> Figure | None:
    system, where = series.system, time_axis(account.time.wall_seconds)
    held = {key: system.host[key] for key, *_ in kinds if key in system.host}
    curves = [
        Curve(label, held[key].mean, color, "%{y:,.3~g} MB/s", 1 / _MB, dash=dash)
        for key, label, color, dash in kinds
        if key in held
    ]
    highs = {label: known(held[key].high) for key, label, *_ in kinds if key in held}
    most = [f"{label} {short_number(max(values) / _MB)} MB/s" for label, values in highs.items() if any(values)]
    told = _READ + (f" At most: {', '.join(most)}." if most else "") + more
    traces = drawn_curves(curves, system, where)
    return curves_figure(name, title, told, traces, where, "MB/s", series.process_starts_seconds)


def host_memory_figure(account: RunAccount, series: RunSeries) -> Figure | None:
    """What the process held of the machine's memory, and what there was left; None where nothing was read of it."""
    system, where = series.system, time_axis(account.time.wall_seconds)
    curves = [
        Curve("held by this process", system.rss_bytes.high, BLUE, "%{y:.3~f} GiB", 1 / _GIB),
        Curve("available to all", system.host_available_bytes.low, GREEN, "%{y:.3~f} GiB", 1 / _GIB, dash="dot"),
    ]
    least = known(system.host_available_bytes.low)
    told = "Memory of the machine." + (f" At least {size(round(min(least)))} were available." if least else "")
    traces = drawn_curves(curves, system, where)
    return curves_figure("system-memory", "Host memory", told, traces, where, "GiB", series.process_starts_seconds)


_GPU_GIB = 2**30
_BROWN, _NAVY, _TEAL = "#823f35", "#2e548d", "#67a3a0"
_CLOCK = "clock of its processors"
_GAP = 0.06
_REASONS = {
    "power_cap": "its power limit",
    "hardware_slowdown": "a slowdown by hardware",
    "thermal": "its temperature",
    "hardware_thermal": "its temperature, by hardware",
    "power_brake": "a power brake from outside",
}

_Panel = tuple[str, list[dict[str, Any]]]


def gpu_figure(account: RunAccount, series: RunSeries, gpu: str, name: str) -> Figure | None:
    """Panels below each other: utilization, memory, power, temperature, clock; points where it was held back.

    Args:
        account, series: of the run.
        gpu: its number.
        name: id of the figure.

    Returns:
        None where nothing was read of it.
    """
    system, where = series.system, time_axis(account.time.wall_seconds)
    bands = system.gpus.get(gpu, {})
    panels = [(title, traces) for title, traces in _panels(bands, system, gpu, where) if traces]
    if not panels:
        return None
    layout = {**aligned(where, anchor="free", position=0), "hoversubplots": "axis", "grid": {}}
    drawn: list[dict[str, Any]] = []
    for place, (title, traces) in enumerate(panels, start=1):
        suffix = "" if place == 1 else str(place)
        drawn += [{**trace, "yaxis": f"y{suffix}"} for trace in traces]
        vertical = axis(title, domain=_domain(place, len(panels)), nticks=4, rangemode="tozero")
        layout[f"yaxis{suffix}"] = {**vertical, "automargin": False}
    layout["shapes"] = [upright(at, dash="dash") for at in where.places(series.process_starts_seconds[1:])]
    told = f"Read about once per second.{_gpu_most(bands)}{_held_back(system, gpu)}"
    height = 90 + 92 * len(panels)
    legend = legend_of(drawn)
    unit = where.per_second
    return Figure(name, f"GPU {gpu}", told, drawn, layout, height, "time", unit, legend, selectable=False)


def _panels(bands: dict[str, Band], system: SystemSeries, gpu: str, where: TimeAxis) -> list[_Panel]:
    watts = system.watts.get(f"GPU {gpu}", Band())
    rows = [
        ("%", [("utilization", "utilization_percent", BLUE), ("memory traffic", "memory_utilization_percent", ORANGE)]),
        ("GiB", [("memory in use, by all", "memory_used_bytes", GREEN)]),
        ("W", [("power", "", PURPLE)]),
        ("°C", [("temperature", "temperature_celsius", _BROWN)]),
        ("MHz", [(_CLOCK, "sm_clock_mhz", _NAVY), ("clock of its memory", "memory_clock_mhz", _TEAL)]),
    ]
    found = []
    for unit, curves in rows:
        scale = 1 / _GPU_GIB if unit == "GiB" else 1.0
        held = [(label, bands.get(key, Band()) if key else watts, color) for label, key, color in curves]
        drawn = [
            Curve(label, band.mean, color, f"%{{y:,.4~g}} {unit}", scale) for label, band, color in held if band.mean
        ]
        found.append((unit, drawn_curves(drawn, system, where)))
    if found[-1][1]:
        found[-1][1].extend(_marks(bands.get("sm_clock_mhz", Band()), system, gpu, where))
    return found


def _domain(place: int, count: int) -> list[float]:
    """From the top down."""
    height = (1 - _GAP * (count - 1)) / count
    low = 1 - place * height - (place - 1) * _GAP
    return [max(0.0, round(low, 4)), round(low + height, 4)]


def _marks(clock: Band, system: SystemSeries, gpu: str, where: TimeAxis) -> list[dict[str, Any]]:
    """Points on the clock, each with why it was held back."""
    reasons = system.throttled.get(gpu, {})
    told = [
        [f"{_REASONS.get(why, why)} {share(shares[place])}" for why, shares in reasons.items() if shares[place] > 0]
        for place in range(len(system))
    ]
    places = [place for place, words in enumerate(told) if words and clock.mean and clock.mean[place] is not None]
    if not places:
        return []
    at = middles(system, where)
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "held back",
            "x": [at[place] for place in places],
            "y": rounded(clock.mean[place] for place in places),
            "customdata": [", ".join(told[place]) for place in places],
            "marker": {"color": RED, "size": 6},
            "hovertemplate": "%{customdata} of the time",
        }
    ]


def _gpu_most(bands: dict[str, Band]) -> str:
    told = []
    busy = known(bands.get("utilization_percent", Band()).mean)
    if busy:
        told.append(f"{sum(busy) / len(busy):.0f}% utilization on average")
    warm = known(bands.get("temperature_celsius", Band()).high)
    if warm:
        told.append(f"{max(warm):.0f} °C at most")
    return f" {', '.join(told)}." if told else ""


def _held_back(system: SystemSeries, gpu: str) -> str:
    """By reason, in which share of the buckets."""
    reasons = system.throttled.get(gpu, {})
    told = [
        f"{_REASONS.get(why, why)} in {share(sum(shares) / len(shares))}"
        for why, shares in reasons.items()
        if sum(shares)
    ]
    return f" It was held back by {', '.join(told)} of the readings." if told else ""


def phases_over_time(account: RunAccount, series: RunSeries) -> Figure | Missing:
    """Shares of each bucket of steps by phase, as wide as its time; outside the steps there is nothing.

    Args:
        account: of the run, for its length.
        series: of the same.
    """
    steps = series.steps
    if not len(steps):
        return Missing("Phases", "no step was recorded")
    where = time_axis(account.time.wall_seconds)
    pairs = list(zip(steps.started_at_seconds, steps.wall_seconds, strict=True))
    layers = [
        Layer(phase_label(name), phase_color(name), _percents(sums, steps))
        for name, sums in steps.phase_seconds.items()
        if any(sums)
    ]
    centers = where.places([start + wall / 2 for start, wall in pairs])
    traces = stack_traces(layers, centers, where.places([wall for _, wall in pairs]), "%{y:.3~g}%")
    layout = {
        "barmode": "stack",
        "bargap": 0,
        **aligned(where),
        "yaxis": {**axis("% of the time", range=[0, 100]), "automargin": False},
    }
    told = "What each optimizer step was spent on. Before the first and after the last one the run starts and ends."
    legend = legend_of(traces)
    return Figure("phases-time", "Phases", told, traces, layout, 190, "time", where.per_second, legend)


def _percents(sums: list[float], steps: StepSeries) -> list[float | None]:
    walls = zip(sums, steps.wall_seconds, strict=True)
    return [100 * seconds / wall if wall > 0 else None for seconds, wall in walls]


_COLORS = (RED, BLUE, GREEN, PURPLE, ORANGE, "#823f35", "#2e548d", GREY)


def power(account: RunAccount, series: RunSeries) -> Figure | Missing:
    """A line per meter: the mean watts of each bucket of readings."""
    system = series.system
    if not system.watts:
        return Missing("Power", "no meter told its power while the run went on")
    where = time_axis(account.time.wall_seconds)
    traces = [
        trace
        for (name, band), color in zip(system.watts.items(), itertools.cycle(_COLORS), strict=False)
        for trace in time_line(name, band.mean, system, where, {"color": color}, "%{y:.4~g} W")
    ]
    return Figure(
        "power",
        "Power",
        f"Watts as read about once per second: {', '.join(system.watts)}.",
        traces,
        {"hovermode": "x unified", "xaxis": where.layout(), "yaxis": axis("W", rangemode="tozero")},
        240,
        "time",
        where.per_second,
        legend_of(traces),
    )
