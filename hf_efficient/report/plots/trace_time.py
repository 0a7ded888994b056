"""Where the time of a trace went: a bar for a device's time by cause, one for its work by family."""

from __future__ import annotations

from collections.abc import Sequence

from hf_efficient.records.trace_device import DeviceBreakdown
from hf_efficient.records.trace_kernels import FamilyTime
from hf_efficient.report.phases import phase_color
from hf_efficient.report.plots.figure import BLUE, GREY, ORANGE, PURPLE, RED, Figure, axis, rounded
from hf_efficient.report.trace_rows import device_time_rows
from hf_efficient.units import share, short_seconds

__all__ = ["device_color", "device_time_bar", "family_bar", "family_color"]

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
    return _bar(f"trace-device-{device.device}", "Device time", told, [(*row, device_color(row[0])) for row in rows])


def family_bar(families: Sequence[FamilyTime], name: str, title: str) -> Figure:
    """One stacked bar over the summed time; the table below it tells the colours and the figures.

    Args:
        families: the longest first, at least one.
        name: id of the figure.
        title: above it.
    """
    told = ", ".join(f"{one.family} {share(one.share)}" for one in families[:3])
    return _bar(
        name, title, f"Most: {told}.", [(one.family, one.seconds, family_color(one.family)) for one in families]
    )


def _bar(name: str, title: str, told: str, rows: Sequence[tuple[str, float, str]]) -> Figure:
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
