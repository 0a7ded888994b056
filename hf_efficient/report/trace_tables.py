"""Tables about a trace: one shape for terminal and page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hf_efficient.records.trace_device import DeviceBreakdown, DeviceGap
from hf_efficient.records.trace_host import HostBreakdown, SyncSite, TraceStep
from hf_efficient.records.trace_kernels import CopyKind, FamilyTime, KernelTime
from hf_efficient.report.trace_rows import device_time_rows
from hf_efficient.units import short_count, short_seconds, size

__all__ = [
    "TraceTable",
    "copy_table",
    "device_time_table",
    "family_table",
    "gap_table",
    "kernel_table",
    "operator_table",
    "step_table",
    "sync_table",
]

_CAUSES = {"host_bound": "host", "launch_bound": "launch", "other": "other"}


@dataclass(frozen=True)
class TraceTable:
    """Names, and figures in words.

    Attributes:
        headings: of the columns; the first names what the rows are.
        rows: a name and its figures.
        shares: of 1, for a bar behind each row; None where there are none.
        total: a last row; None without.
    """

    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    shares: Sequence[float] | None = None
    total: tuple[str, ...] | None = None


def device_time_table(device: DeviceBreakdown, name: str) -> TraceTable:
    """Where the time of a device went, from its first event to its last; each second in one row."""
    window = device.busy.window_seconds
    held = device_time_rows(device)
    shares = [seconds / window if window else 0.0 for _, seconds in held]
    rows = [
        (label, short_seconds(seconds), _percent(part)) for (label, seconds), part in zip(held, shares, strict=True)
    ]
    total = ("in all", short_seconds(window), "100.0%" if window else "")
    return TraceTable((name, "time", "share"), rows, shares, total)


def family_table(families: Sequence[FamilyTime], title: str, counted: str) -> TraceTable:
    """Time by kind of work."""
    rows = [(one.family, short_seconds(one.seconds), _percent(one.share), f"{one.count:,}") for one in families]
    return TraceTable((title, "time", "share", counted), rows, [one.share for one in families])


def kernel_table(kernels: Sequence[KernelTime], most: int) -> TraceTable:
    """The kernels that take longest."""
    rows = [
        (
            one.name.removeprefix("at::native::") + (f" ({one.operator})" if one.operator else ""),
            short_seconds(one.seconds),
            _percent(one.share),
            f"{one.count:,}",
            short_seconds(one.mean_seconds),
        )
        for one in kernels[:most]
    ]
    return TraceTable(("kernel (operator)", "time", "share", "count", "mean"), rows)


def operator_table(host: HostBreakdown, most: int) -> TraceTable:
    """The operators of longest self time on the host."""
    rows = [
        (
            one.name,
            short_seconds(one.self_seconds),
            _percent(one.share),
            f"{one.count:,}",
            short_seconds(one.total_seconds),
        )
        for one in host.operators[:most]
    ]
    return TraceTable(("operator on the host", "self time", "share", "calls", "in all"), rows)


def copy_table(copies: Sequence[CopyKind]) -> TraceTable:
    """Copies by direction."""
    rows = [
        (
            one.direction + (f", {one.host_memory}" if one.host_memory else ""),
            short_seconds(one.seconds),
            f"{one.count:,}",
            f"{one.small_count:,}",
            size(one.bytes) if one.bytes is not None else "not told",
            f"{short_count(one.bytes_per_second)}B/s" if one.bytes_per_second is not None else "not told",
        )
        for one in copies
    ]
    return TraceTable(("copies", "time", "count", "small", "bytes", "rate"), rows)


def gap_table(gaps: Sequence[DeviceGap], most: int) -> TraceTable:
    """The longest gaps."""
    rows = [
        (
            ", ".join(f"{name} {100 * part:.0f}%" for name, part in one.host) or "not told",
            short_seconds(one.seconds),
            short_seconds(one.start_seconds),
            "" if one.step is None else str(one.step),
            _CAUSES[one.cause],
        )
        for one in gaps[:most]
    ]
    return TraceTable(("what the host did in the longest gaps", "gap", "at", "step", "bound by"), rows)


def sync_table(syncs: Sequence[SyncSite], most: int) -> TraceTable:
    """Where the host waited for a device."""
    rows = [
        (
            ", ".join(part for part in (one.site, one.operator, one.call) if part),
            f"{one.count:,}",
            short_seconds(one.seconds),
            short_seconds(one.idle_after_seconds),
        )
        for one in syncs[:most]
    ]
    return TraceTable(("the host waited for the device in", "count", "waited", "idle after"), rows)


def step_table(steps: Sequence[TraceStep], most: int) -> TraceTable:
    """The steps; of many the longest, in order."""
    shown = sorted(sorted(steps, key=lambda one: -one.seconds)[:most], key=lambda one: one.start_seconds)
    title = "step" if len(shown) == len(steps) else f"the longest {len(shown)} of {len(steps)} steps"
    if steps[0].busy_seconds is None:
        return TraceTable((title, "time"), [(str(one.number), short_seconds(one.seconds)) for one in shown])
    rows = [
        (
            str(one.number),
            short_seconds(one.seconds),
            _percent((one.busy_seconds or 0.0) / one.seconds) if one.seconds else "",
            f"{one.syncs:,}",
            short_seconds(one.sync_seconds),
        )
        for one in shown
    ]
    return TraceTable((title, "time", "device busy", "waits", "waited"), rows)


def _percent(part: float) -> str:
    return f"{100 * part:.1f}%"
