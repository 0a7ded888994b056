"""What a GPU did over the time of a run, and what held it back."""

from __future__ import annotations

from typing import Any

from hf_efficient.records import RunAccount
from hf_efficient.records.series import Band, RunSeries, SystemSeries
from hf_efficient.report.plots.figure import BLUE, GREEN, ORANGE, PURPLE, RED, Figure, axis, legend_of, rounded
from hf_efficient.report.plots.run_axes import TimeAxis, time_axis, upright
from hf_efficient.report.plots.system.curves import Curve, aligned, drawn_curves, known
from hf_efficient.report.plots.time_lines import middles
from hf_efficient.units import share

__all__ = ["gpu_figure"]

_GIB = 2**30
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
    told = f"Read about once per second.{_most(bands)}{_held_back(system, gpu)}"
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
        scale = 1 / _GIB if unit == "GiB" else 1.0
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


def _most(bands: dict[str, Band]) -> str:
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
