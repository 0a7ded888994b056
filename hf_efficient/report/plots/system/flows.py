"""What went through disks and network, and the memory that the machine had left."""

from __future__ import annotations

from collections.abc import Sequence

from hf_efficient.records import RunAccount
from hf_efficient.records.series import Band, RunSeries
from hf_efficient.report.numbers import short_number
from hf_efficient.report.plots.figure import BLUE, GREEN, ORANGE, PURPLE, Figure
from hf_efficient.report.plots.run_axes import time_axis
from hf_efficient.report.plots.system.curves import Curve, curves_figure, drawn_curves, known
from hf_efficient.units import size

__all__ = ["disk_figure", "host_memory_figure", "network_figure"]

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
