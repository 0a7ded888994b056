"""Where the time of a whole run went, as one bar.

Where the time of each optimizer step went.

Time, money and energy by phase, beside each other.

Where the time of several runs went, under each other.

Where the time of a trace went: a bar for a device's time by cause, one for its work by family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hf_efficient.records.account import RunAccount, StepTimes, TimeAccount
from hf_efficient.records.series import StepSeries
from hf_efficient.records.steps import PHASES
from hf_efficient.records.trace import DeviceBreakdown, FamilyTime
from hf_efficient.reporting.labels import phase_color, phase_label
from hf_efficient.reporting.plots.figure import (
    BLUE,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    Figure,
    Missing,
    axis,
    legend_of,
    rounded,
    stack_traces,
    step_axis,
    step_layer,
    step_layout,
    time_axis,
)
from hf_efficient.reporting.trace_tables import device_time_rows
from hf_efficient.text import kilowatt_hours, seconds, share, short_seconds, usd


def time_bar(time: TimeAccount) -> Figure:
    """One stacked bar over the wall time; the table below it tells the colours and the figures."""
    where = time_axis(time.wall_seconds)
    held = {**time.phase_seconds, "unattributed": time.unattributed_seconds}
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": phase_label(name),
            "x": where.places([value]),
            "y": [""],
            "customdata": [seconds(value)],
            "marker": {"color": phase_color(name)},
            "hovertemplate": "%{customdata}",
        }
        for name, value in held.items()
        if value > 0
    ]
    longest = sorted(((value, name) for name, value in held.items() if value > 0), reverse=True)[:3]
    told = ", ".join(f"{phase_label(name)} {seconds(value)}" for value, name in longest)
    return Figure(
        id="time-bar",
        title="Over the run",
        summary=f"The wall time of {seconds(time.wall_seconds)} by phase, in the order of the table. Most: {told}.",
        traces=traces,
        layout={
            "barmode": "stack",
            "bargap": 0,
            "hovermode": "closest",
            "xaxis": {**where.layout(), "title": {"text": where.unit, "standoff": 4}},
            "yaxis": {"visible": False, "fixedrange": True},
        },
        height=104,
    )


_ROOM = 1.3
_CLIP_FROM = 2.0


def step_phases(steps: StepSeries, times: StepTimes) -> Figure | Missing:
    """Seconds per step, stacked by phase.

    Where a few steps with evaluations, checkpoints or a compilation tower over the others, the others have the height,
    and the summary says so.
    """
    if not len(steps):
        return Missing("Per step", "no step was recorded")
    where = step_axis(steps)
    phases = steps.phase_seconds.items()
    layers = [step_layer(phase_label(name), phase_color(name), sums, steps) for name, sums in phases]
    traces = stack_traces(layers, where.centers, where.widths if max(steps.steps) > 1 else None)
    top, clipped = _top(steps, times)
    first, last = steps.first_step[0], steps.last_step[-1]
    summary = f"Seconds per optimizer step by phase, from step {first:,} to {last:,}."
    if max(steps.steps) > 1:
        summary += f" A point is the mean of up to {max(steps.steps):,} steps."
    if clipped:
        summary += " Steps with an evaluation, a checkpoint or a slow start reach above the plot: “Whole” shows them."
    layout = step_layout(steps, where)
    if clipped:
        layout["yaxis"]["range"] = [0, top]
    return Figure("step-phases", "Per step", summary, traces, layout, 340, "step", legend=legend_of(traces))


def _top(steps: StepSeries, times: StepTimes) -> tuple[float, bool]:
    """A height that shows the training of nearly every step, and whether that cuts something off."""
    training = _ROOM * times.p99_seconds if times.p99_seconds else max(steps.step_seconds_mean)
    whole = max(wall / count for wall, count in zip(steps.wall_seconds, steps.steps, strict=True))
    return training, whole > _CLIP_FROM * training


def phase_shares(account: RunAccount) -> Figure:
    """A bar each for time and what is known of money and energy, as shares: they need not be alike."""
    time = {**account.time.phase_seconds, "unattributed": account.time.unattributed_seconds}
    rows: list[tuple[str, Mapping[str, float], Callable[[float], str]]] = [("time", time, seconds)]
    if account.money.phase_usd:
        rows.append(("money", account.money.phase_usd, usd))
    if account.energy.phase_joules:
        rows.append(("energy", account.energy.phase_joules, kilowatt_hours))
    rows.reverse()  # plotly.js counts from below
    names = [name for name in PHASES if any(row.get(name, 0) > 0 for _, row, _ in rows)]
    told = " and ".join(name for name, _, _ in reversed(rows[:-1]))
    return Figure(
        "phase-shares",
        "By phase",
        f"Which share of the time, and of the {told}, went to which phase; the table has the figures.",
        [_bar(name, rows) for name in names],
        {
            "barmode": "stack",
            "barnorm": "percent",
            "bargap": 0.3,
            "hovermode": "closest",
            "xaxis": axis("", range=[0, 100], ticksuffix="%", showgrid=False, zeroline=False),
            "yaxis": axis("", fixedrange=True),
        },
        80 + 48 * len(rows),
        zoomable=False,
    )


def _bar(name: str, rows: list[tuple[str, Mapping[str, float], Callable[[float], str]]]) -> dict[str, Any]:
    values = [max(row.get(name, 0.0), 0.0) for _, row, _ in rows]
    return {
        "type": "bar",
        "orientation": "h",
        "name": phase_label(name),
        "y": [label for label, _, _ in rows],
        "x": values,
        "customdata": [tell(value) for value, (_, _, tell) in zip(values, rows, strict=True)],
        "marker": {"color": phase_color(name)},
        "hovertemplate": "%{customdata}, %{x:.3~g}%",
    }


def compare_phases(times: Sequence[TimeAccount], labels: Sequence[str]) -> Figure:
    """A stacked bar per run over the same axis; the first run is on top."""
    where = time_axis(max(time.wall_seconds for time in times))
    held = [{**time.phase_seconds, "unattributed": time.unattributed_seconds} for time in times]
    known = dict.fromkeys(name for phases in held for name, value in phases.items() if value > 0)
    names = sorted(known, key=lambda name: PHASES.index(name) if name in PHASES else len(PHASES))
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": phase_label(name),
            "y": list(reversed(labels)),
            "x": where.places([max(phases.get(name, 0.0), 0.0) for phases in reversed(held)]),
            "customdata": [seconds(phases.get(name, 0.0)) for phases in reversed(held)],
            "marker": {"color": phase_color(name)},
            "hovertemplate": "%{customdata}",
        }
        for name in names
    ]
    told = ", ".join(f"{label} {seconds(time.wall_seconds)}" for label, time in zip(labels, times, strict=True))
    return Figure(
        "compare-phases",
        "By phase",
        f"The wall time of each run by phase: {told}.",
        traces,
        {
            "barmode": "stack",
            "bargap": 0.3,
            "hovermode": "closest",
            "xaxis": {**where.layout(), "title": {"text": f"wall time, {where.unit}", "standoff": 6}},
            "yaxis": axis("", fixedrange=True, type="category"),
        },
        90 + 52 * len(times),
        legend=legend_of(traces),
    )


_DEVICE_COLORS = {
    "computing": BLUE,
    "only communicating": RED,
    "only copying or setting memory": "#e3ce80",
    "idle, host-bound": ORANGE,
    "idle, launch-bound": PURPLE,
    "idle, other": GREY,
}
_FAMILY_COLORS = {
    "matmul": phase_color("backward"),
    "attention": phase_color("forward"),
    "elementwise": phase_color("data_wait"),
    "reduction": phase_color("host_to_device"),
    "normalisation": phase_color("evaluation"),
    "embedding": phase_color("device_wait"),
    "optimizer": phase_color("optimizer"),
    "copy": phase_color("checkpointing"),
    "memset": phase_color("logging"),
    "communication": phase_color("communication"),
}


def device_color(label: str) -> str:
    """Of a row of ``device_time_rows``."""
    return _DEVICE_COLORS.get(label, GREY)


def family_color(family: str) -> str:
    """Of a family of kernels or operators."""
    return _FAMILY_COLORS.get(family, phase_color("unattributed"))


def device_time_bar(device: DeviceBreakdown) -> Figure:
    """One stacked bar over a device's window; the table below it tells the colours and the figures."""
    rows = device_time_rows(device)
    busy = device.busy
    told = f"The device ran something for {share(1 - busy.idle_share)} of {short_seconds(busy.window_seconds)}"
    idle = sorted(((seconds, name) for name, seconds in rows if name.startswith("idle") and seconds > 0), reverse=True)
    told += f"; {idle[0][1]} for {short_seconds(idle[0][0])}." if idle else ", and was never idle."
    return _trace_time_bar(
        f"trace-device-{device.device}", "Device time", told, [(*row, device_color(row[0])) for row in rows]
    )


def family_bar(families: Sequence[FamilyTime], name: str, title: str) -> Figure:
    """One stacked bar over the summed time; the table below it tells the colours and the figures.

    Args:
        families: the longest first, at least one.
        name: id of the figure.
        title: above it.
    """
    told = ", ".join(f"{one.family} {share(one.share)}" for one in families[:3])
    return _trace_time_bar(
        name, title, f"Most: {told}.", [(one.family, one.seconds, family_color(one.family)) for one in families]
    )


def _trace_time_bar(name: str, title: str, told: str, rows: Sequence[tuple[str, float, str]]) -> Figure:
    unit, scale = ("s", 1.0) if sum(seconds for _, seconds, _ in rows) >= 1 else ("ms", 1e3)
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": label,
            "x": rounded([scale * seconds]),
            "y": [""],
            "customdata": [short_seconds(seconds)],
            "marker": {"color": color},
            "hovertemplate": "%{customdata}",
        }
        for label, seconds, color in rows
        if seconds > 0
    ]
    whole = scale * sum(seconds for _, seconds, _ in rows)
    layout = {
        "barmode": "stack",
        "bargap": 0,
        "hovermode": "closest",
        "xaxis": axis(unit, range=[0, whole or 1], showgrid=False, zeroline=False),
        "yaxis": {"visible": False, "fixedrange": True},
    }
    return Figure(name, title, told, traces, layout, 104, zoomable=False)
