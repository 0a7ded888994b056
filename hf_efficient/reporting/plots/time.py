"""Where time went: of a run, of its steps, of several runs, of a trace; and money and energy beside it."""

from collections.abc import Callable, Mapping, Sequence

from hf_efficient.accounting.series import per_step
from hf_efficient.records.account import RunAccount, StepTimes, TimeAccount
from hf_efficient.records.series import StepSeries
from hf_efficient.records.steps import PHASES
from hf_efficient.records.trace import DeviceBreakdown, FamilyTime
from hf_efficient.reporting.labels import all_phases, phase_color, phase_label, phases_in_order
from hf_efficient.reporting.plots import figure as draw
from hf_efficient.reporting.plots.figure import Figure, Layer, Missing
from hf_efficient.reporting.trace_tables import device_time_rows
from hf_efficient.text import kilowatt_hours, seconds, share, short_seconds, usd

_ROOM = 1.3
_CLIP_FROM = 2.0
_ONE_BAR = {"barmode": "stack", "bargap": 0, "hovermode": "closest", "yaxis": {"visible": False, "fixedrange": True}}
_ROWS = {"barmode": "stack", "bargap": 0.3, "hovermode": "closest"}
_DEVICE_COLORS = {
    "computing": draw.BLUE,
    "only communicating": draw.RED,
    "only copying or setting memory": "#e3ce80",
    "idle, host-bound": draw.ORANGE,
    "idle, launch-bound": draw.PURPLE,
}
_FAMILY_PHASES = {
    "matmul": "backward",
    "attention": "forward",
    "elementwise": "data_wait",
    "reduction": "host_to_device",
    "normalisation": "evaluation",
    "embedding": "device_wait",
    "optimizer": "optimizer",
    "copy": "checkpointing",
    "memset": "logging",
    "communication": "communication",
}
"""Families of kernels have the colours of phases."""


def time_bar(time: TimeAccount) -> Figure:
    where = draw.time_axis(time.wall_seconds)
    held = {name: value for name, value in all_phases(time).items() if value > 0}
    traces = []
    for name, value in held.items():
        traces.append(draw.bar(phase_label(name), phase_color(name), where.places([value]), [""], [seconds(value)]))
    longest = sorted(((value, name) for name, value in held.items()), reverse=True)[:3]
    words = ", ".join(f"{phase_label(name)} {seconds(value)}" for value, name in longest)
    summary = f"The wall time of {seconds(time.wall_seconds)} by phase, in the order of the table. Most: {words}."
    horizontal = {**where.layout(), "title": {"text": where.unit, "standoff": 4}}
    return Figure("time-bar", "Over the run", summary, traces, {**_ONE_BAR, "xaxis": horizontal}, 104, has_legend=False)


def step_phases(steps: StepSeries, times: StepTimes) -> Figure | Missing:
    """Seconds per step, stacked by phase; where a few steps tower over the others, the others have the height."""
    if not len(steps):
        return Missing("Per step", "no step was recorded")
    where, most = draw.step_axis(steps), max(steps.steps)
    phases = steps.phase_seconds.items()
    layers = [Layer(phase_label(name), phase_color(name), per_step(held, steps)) for name, held in phases]
    traces = draw.stack_traces(layers, where.centers, where.widths if most > 1 else None)
    top, clipped = _top(steps, times)
    first, last = steps.first_step[0], steps.last_step[-1]
    summary = f"Seconds per optimizer step by phase, from step {first:,} to {last:,}."
    if most > 1:
        summary += f" A point is the mean of up to {most:,} steps."
    layout = draw.step_layout(steps, where)
    if clipped:
        summary += " Steps with an evaluation, a checkpoint or a slow start reach above the plot: “Whole” shows them."
        layout["yaxis"]["range"] = [0, top]
    return Figure("step-phases", "Per step", summary, traces, layout, 340, "step")


def _top(steps: StepSeries, times: StepTimes) -> tuple[float, bool]:
    """A height that shows the training of nearly every step, and whether that cuts something off."""
    training = _ROOM * times.p99_seconds if times.p99_seconds else max(steps.step_seconds_mean)
    whole = max(wall / count for wall, count in zip(steps.wall_seconds, steps.steps, strict=True))
    return training, whole > _CLIP_FROM * training


def phase_shares(account: RunAccount) -> Figure:
    rows: list[tuple[str, Mapping[str, float], Callable[[float], str]]] = [("time", all_phases(account.time), seconds)]
    if account.money.phase_usd:
        rows.append(("money", account.money.phase_usd, usd))
    if account.energy.phase_joules:
        rows.append(("energy", account.energy.phase_joules, kilowatt_hours))
    rows.reverse()  # plotly.js counts from below
    labels = [label for label, _, _ in rows]
    traces = []
    for name in PHASES:
        values = [max(row.get(name, 0.0), 0.0) for _, row, _ in rows]
        if any(values):
            words = [tell(value) for value, (_, _, tell) in zip(values, rows, strict=True)]
            each = draw.bar(phase_label(name), phase_color(name), values, labels, words)
            traces.append({**each, "hovertemplate": "%{customdata}, %{x:.3~g}%"})
    layout = {
        **_ROWS,
        "barnorm": "percent",
        "xaxis": draw.axis("", range=[0, 100], ticksuffix="%", showgrid=False, zeroline=False),
        "yaxis": draw.axis("", fixedrange=True),
    }
    others = " and ".join(reversed(labels[:-1]))
    summary = f"Which share of the time, and of the {others}, went to which phase; the table has the figures."
    height = 80 + 48 * len(rows)
    return Figure("phase-shares", "By phase", summary, traces, layout, height, has_legend=False, zoomable=False)


def compare_phases(times: Sequence[TimeAccount], labels: Sequence[str]) -> Figure:
    where = draw.time_axis(max(time.wall_seconds for time in times))
    held = [all_phases(time) for time in reversed(times)]
    known = dict.fromkeys(name for phases in reversed(held) for name, value in phases.items() if value > 0)
    rows = list(reversed(labels))
    traces = []
    for name in phases_in_order(known):
        values = [phases.get(name, 0.0) for phases in held]
        x = where.places([max(value, 0.0) for value in values])
        traces.append(draw.bar(phase_label(name), phase_color(name), x, rows, [seconds(value) for value in values]))
    words = ", ".join(f"{label} {seconds(time.wall_seconds)}" for label, time in zip(labels, times, strict=True))
    layout = {
        **_ROWS,
        "xaxis": {**where.layout(), "title": {"text": f"wall time, {where.unit}", "standoff": 6}},
        "yaxis": draw.axis("", fixedrange=True, type="category"),
    }
    summary = f"The wall time of each run by phase: {words}."
    return Figure("compare-phases", "By phase", summary, traces, layout, 90 + 52 * len(times))


def device_color(label: str) -> str:
    return _DEVICE_COLORS.get(label, draw.GREY)


def family_color(family: str) -> str:
    return phase_color(_FAMILY_PHASES.get(family, "unattributed"))


def device_time_bar(device: DeviceBreakdown) -> Figure:
    rows = device_time_rows(device)
    busy = device.busy
    words = f"The device ran something for {share(1 - busy.idle_share)} of {short_seconds(busy.window_seconds)}"
    idle = sorted(((seconds, name) for name, seconds in rows if name.startswith("idle") and seconds > 0), reverse=True)
    words += f"; {idle[0][1]} for {short_seconds(idle[0][0])}." if idle else ", and was never idle."
    parts = [(label, value, device_color(label)) for label, value in rows]
    return _trace_bar(f"trace-device-{device.device}", "Device time", words, parts)


def family_bar(families: Sequence[FamilyTime], name: str, title: str) -> Figure:
    words = ", ".join(f"{one.family} {share(one.share)}" for one in families[:3])
    parts = [(one.family, one.seconds, family_color(one.family)) for one in families]
    return _trace_bar(name, title, f"Most: {words}.", parts)


def _trace_bar(name: str, title: str, words: str, parts: Sequence[tuple[str, float, str]]) -> Figure:
    whole = sum(value for _, value, _ in parts)
    unit, scale = ("s", 1.0) if whole >= 1 else ("ms", 1e3)
    traces = [
        draw.bar(label, color, draw.rounded([scale * value]), [""], [short_seconds(value)])
        for label, value, color in parts
        if value > 0
    ]
    horizontal = draw.axis(unit, range=[0, scale * whole or 1], showgrid=False, zeroline=False)
    return Figure(name, title, words, traces, {**_ONE_BAR, "xaxis": horizontal}, 104, has_legend=False, zoomable=False)
