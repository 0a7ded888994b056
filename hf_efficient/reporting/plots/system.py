"""What the sampler saw of the machine over the time of a run; all over the same axis, which zooms as one."""

import itertools
from collections.abc import Iterable
from typing import Any

from hf_efficient.records.account import RunAccount
from hf_efficient.records.series import Band, RunSeries, SystemSeries
from hf_efficient.reporting.labels import called, phase_color, phase_label, short_number
from hf_efficient.reporting.plots import figure as draw
from hf_efficient.reporting.plots.figure import Figure, Missing, TimeAxis, Trace, Values
from hf_efficient.text import share

_MB = 1e6
_MARGIN = {"l": 60, "r": 14, "t": 10, "b": 8}  # in pixels, wide enough for the figures and the title of a vertical axis
_BROWN, _NAVY = "#823f35", "#2e548d"
_METERS = (draw.RED, draw.BLUE, draw.GREEN, draw.PURPLE, draw.ORANGE, _BROWN, _NAVY, draw.GREY)
NOT_READ = "the sampler read nothing of it"
_READ = "Between readings about a second apart; the mean where several are put together."
_GAP = 0.06


def _curve(
    system: SystemSeries, where: TimeAxis, label: str, values: Values, color: str, hover: str, **more: Any
) -> list[Trace]:
    """Nothing where it was not read, or was 0 all the time; ``hover`` formats a value for the pointer."""
    style = {"color": color, "hovertemplate": hover, **more}
    return draw.time_line(label, values, system, where, **style) if any(values) else []


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


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
    traces: list[Trace] = []
    for key, label, color in called("cores"):
        stacked = {"stackgroup": "cores", "fillcolor": color, "width": 0}
        values = system.host.get(key, Band()).mean
        traces += _curve(system, where, label, values, color, "%{y:.3~g} cores", **stacked)
    load = system.host.get("load_1_minute", Band()).mean
    traces += _curve(system, where, "load average, 1 minute", load, draw.GREY, "%{y:.3~g}", dash="dot")
    summary = f"Cores in use, and by whom.{_most_cores(system.host)}"
    if traces and cpus:
        traces.append(draw.level("all cores", [0, where.end], cpus, draw.RED, width=1.5, dash="dash"))
    summary += f" The machine has {cpus:,}." if cpus else ""
    return _figure("system-cores", "Processor", summary, traces, where, series, "cores")


def _most_cores(host: dict[str, Band]) -> str:
    held = [(label, _known(host.get(key, Band()).high)) for key, label, _ in called("cores")]
    most = [f"{label} {short_number(max(highs))}" for label, highs in held if any(highs)]
    text = f" At most: {', '.join(most)}." if most else ""
    waits = _known(host.get("main_thread_core_wait", Band()).mean)
    if waits and max(waits) > 0:
        text += f" The main thread waited for a core in up to {share(max(waits))} of its time."
    return text


def flow_figure(account: RunAccount, series: RunSeries, name: str, title: str) -> Figure | Missing:
    system, where = series.system, draw.time_axis(account.time.wall_seconds)
    traces, most = [], []
    for key, label, color, dash in called("flows")[name]:
        band = system.host.get(key, Band())
        traces += _curve(system, where, label, band.mean, color, "%{y:,.3~g} MB/s", scale=1 / _MB, dash=dash)
        highs = _known(band.high)
        most += [f"{label} {short_number(max(highs) / _MB)} MB/s"] if any(highs) else []
    summary = _READ + (f" At most: {', '.join(most)}." if most else "")
    waits = _known(system.host.get("disk_latency_milliseconds", Band()).high) if name == "system-disks" else []
    summary += f" A request took {max(waits):,.3g} ms at most, on average over a reading." if waits else ""
    looked = any(key in system.host for key, *_ in called("flows")[name])
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
    watts = system.watts.get(f"GPU {gpu}", Band())
    found: list[tuple[str, list[Trace]]] = []
    for unit, curves in called("gpu_curves").items():
        traces: list[Trace] = []
        for key, label, color in curves:
            band = bands.get(key, Band()) if key else watts
            scale = 1 / draw.GIB if unit == "GiB" else 1.0
            traces += _curve(system, where, label, band.mean, color, f"%{{y:,.4~g}} {unit}", scale=scale)
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
    traces: list[Trace] = []
    for (name, band), color in zip(system.watts.items(), itertools.cycle(_METERS), strict=False):
        traces += draw.time_line(name, band.mean, system, where, color=color, hovertemplate="%{y:.4~g} W")
    layout = draw.plane(where.layout(), draw.axis("W", rangemode="tozero"))
    summary = f"Watts as read about once per second: {', '.join(system.watts)}."
    return Figure("power", "Power", summary, traces, layout, 240, "time", where.per_second)
