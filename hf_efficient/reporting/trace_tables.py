"""The breakdown of a trace: tables of one shape for terminal and page, lines beside them; and on a terminal."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from hf_efficient.records import trace as rec
from hf_efficient.reporting.terminal import FoundTable, drawn
from hf_efficient.text import count, share, short_count, short_seconds, size

_MOST_ROWS = 8
_CAUSES = {"host_bound": "host", "launch_bound": "launch", "other": "other"}


def trace_title(trace: rec.TraceBreakdown, name: str = "") -> str:
    file = trace.file
    words = [f"{count(file.events)} events in {size(file.read_bytes)}", f"{short_seconds(trace.window_seconds)} long"]
    if file.rank is not None and (file.world_size or 1) > 1:
        words.append(f"rank {file.rank} of {file.world_size}")
    if trace.steps:
        words.append(f"steps {trace.steps[0].number} to {trace.steps[-1].number}")
    return f"{name or file.path}: {', '.join(words)}"


def device_title(device: rec.DeviceBreakdown) -> str:
    return f"device {device.device}" + (f", {device.name}" if device.name else "")


def device_lines(device: rec.DeviceBreakdown) -> Iterator[str]:
    if device.launches is not None:
        yield from _launch_lines(device.launches)
    if device.communication is not None:
        held = device.communication
        yield (
            f"{count(held.kernels)} communication kernels run for {short_seconds(held.seconds)}: "
            f"{share(held.overlap_share)} of that beside computation, {short_seconds(held.exposed_seconds)} exposed "
            f"({share(held.exposed_share)} of the window)"
        )


def _launch_lines(launches: rec.LaunchBreakdown) -> Iterator[str]:
    short = short_seconds(launches.short_kernel_seconds)
    yield (
        f"{count(launches.kernels)} kernels, {launches.kernels_per_second:,.0f} per second: "
        f"{_percentiles(launches.length)}; "
        f"{share(launches.short_share)} are shorter than {short}, {share(launches.short_time_share)} of their time"
    )
    if launches.graph_kernels:
        yield f"{count(launches.graph_kernels)} of them were submitted by CUDA graphs"
    if launches.call is not None and launches.call_seconds is not None:
        spent = short_seconds(launches.call_seconds)
        yield f"calls that launch them: {spent} of the host, {_percentiles(launches.call)}"
    if launches.delay is not None:
        yield f"from call to start of the kernel: {_percentiles(launches.delay)}"


def _percentiles(values: rec.Percentiles) -> str:
    words = (("p10", values.p10_seconds), ("p50", values.p50_seconds), ("p90", values.p90_seconds))
    return ", ".join(f"{name} {short_seconds(value)}" for name, value in words)


def device_time_rows(device: rec.DeviceBreakdown) -> list[tuple[str, float]]:
    busy = device.busy
    exposed = device.communication.exposed_seconds if device.communication else 0.0
    rows = [
        ("computing", busy.compute_seconds),
        ("only communicating", exposed),
        ("only copying or setting memory", busy.busy_seconds - busy.compute_seconds - exposed),
        ("idle, host-bound", busy.idle.host_bound_seconds),
        ("idle, launch-bound", busy.idle.launch_bound_seconds),
        ("idle, other", busy.idle.other_seconds),
    ]
    return [(name, max(seconds, 0.0)) for name, seconds in rows if seconds > 0 or name == "computing"]


def device_time_table(device: rec.DeviceBreakdown, name: str) -> FoundTable:
    window = device.busy.window_seconds
    held = [(label, seconds, seconds / window if window else 0.0) for label, seconds in device_time_rows(device)]
    rows = [(label, short_seconds(seconds), _percent(part)) for label, seconds, part in held]
    total = ("in all", short_seconds(window), "100.0%" if window else "")
    shares = [part for _, _, part in held]
    return FoundTable((name, "time", "share"), rows, shares=shares, total=total)


def family_table(families: Sequence[rec.FamilyTime], title: str, counted: str = "calls") -> FoundTable:
    rows = [(one.family, short_seconds(one.seconds), _percent(one.share), f"{one.count:,}") for one in families]
    return FoundTable((title, "time", "share", counted), rows, shares=[one.share for one in families])


def work_table(device: rec.DeviceBreakdown) -> FoundTable:
    return family_table(device.families, "kernels, copies and memsets by family", "count")


def device_tables(device: rec.DeviceBreakdown, most: int) -> Iterator[FoundTable]:
    yield _kernel_table(device.kernels, most)
    if device.copies:
        yield _copy_table(device.copies)
    if device.gaps:
        yield _gap_table(device.gaps, most)


def host_tables(trace: rec.TraceBreakdown, most: int) -> Iterator[FoundTable]:
    """Waits for the device, steps, operators; where no device was traced, the operators also by family."""
    if trace.syncs:
        yield _sync_table(trace.syncs, most)
    if trace.steps:
        yield _step_table(trace.steps, most)
    if trace.host is not None:
        if not trace.devices:
            yield family_table(trace.host.families, "operators by family", "calls")
        held = trace.host.operators[:most]
        rows = [_timed(one.name, one.self_seconds, one.share, one.count, one.total_seconds) for one in held]
        yield FoundTable(("operator on the host", "self time", "share", "calls", "in all"), rows)


def _kernel_table(kernels: Sequence[rec.KernelTime], most: int) -> FoundTable:
    rows = []
    for one in kernels[:most]:
        name = one.name.removeprefix("at::native::") + (f" ({one.operator})" if one.operator else "")
        rows.append(_timed(name, one.seconds, one.share, one.count, one.mean_seconds))
    return FoundTable(("kernel (operator)", "time", "share", "count", "mean"), rows)


def _timed(name: str, seconds: float, share: float, count: int, other_seconds: float) -> tuple[str, ...]:
    return name, short_seconds(seconds), _percent(share), f"{count:,}", short_seconds(other_seconds)


def _copy_table(copies: Sequence[rec.CopyKind]) -> FoundTable:
    rows = []
    for one in copies:
        name = one.direction + (f", {one.host_memory}" if one.host_memory else "")
        held = size(one.bytes) if one.bytes is not None else "not known"
        rate = f"{short_count(one.bytes_per_second)}B/s" if one.bytes_per_second is not None else "not known"
        rows.append((name, short_seconds(one.seconds), f"{one.count:,}", f"{one.small_count:,}", held, rate))
    return FoundTable(("copies", "time", "count", "small", "bytes", "rate"), rows)


def _gap_table(gaps: Sequence[rec.DeviceGap], most: int) -> FoundTable:
    rows = []
    for one in gaps[:most]:
        host = ", ".join(f"{name} {100 * part:.0f}%" for name, part in one.host) or "not known"
        step, times = "" if one.step is None else str(one.step), (one.seconds, one.start_seconds)
        rows.append((host, *map(short_seconds, times), step, _CAUSES[one.cause]))
    return FoundTable(("what the host did in the longest gaps", "gap", "at", "step", "bound by"), rows)


def _sync_table(syncs: Sequence[rec.SyncSite], most: int) -> FoundTable:
    rows = []
    for one in syncs[:most]:
        place = ", ".join(part for part in (one.site, one.operator, one.call) if part)
        rows.append((place, f"{one.count:,}", short_seconds(one.seconds), short_seconds(one.idle_after_seconds)))
    return FoundTable(("the host waited for the device in", "count", "waited", "idle after"), rows)


def _step_table(steps: Sequence[rec.TraceStep], most: int) -> FoundTable:
    shown = sorted(sorted(steps, key=lambda one: -one.seconds)[:most], key=lambda one: one.start_seconds)
    title = "step" if len(shown) == len(steps) else f"the longest {len(shown)} of {len(steps)} steps"
    if steps[0].busy_seconds is None:
        return FoundTable((title, "time"), [(str(one.number), short_seconds(one.seconds)) for one in shown])
    rows = []
    for one in shown:
        busy = _percent((one.busy_seconds or 0.0) / one.seconds) if one.seconds else ""
        took, waited = short_seconds(one.seconds), short_seconds(one.sync_seconds)
        rows.append((str(one.number), took, busy, f"{one.syncs:,}", waited))
    return FoundTable((title, "time", "device busy", "waits", "waited"), rows)


def _percent(part: float) -> str:
    return f"{100 * part:.1f}%"


def trace_renderables(trace: rec.TraceBreakdown) -> list[RenderableType]:
    parts = [part for device in trace.devices for part in _device(device)]
    parts += map(drawn, host_tables(trace, _MOST_ROWS))
    remarks = [Text(one, "yellow") for one in trace.remarks]
    return [Text(trace_title(trace), "bold"), *remarks, *(Padding(part, (1, 0, 0, 0)) for part in parts)]


def _device(device: rec.DeviceBreakdown) -> Iterator[RenderableType]:
    kernels, *others = device_tables(device, _MOST_ROWS)
    yield from map(drawn, (device_time_table(device, device_title(device)), work_table(device), kernels))
    if lines := "\n".join(device_lines(device)):
        yield Text(lines)
    yield from map(drawn, others)
