"""What the deeper instruments of a run and its trace found, as tables of one shape for terminal and page."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from hf_efficient.records import profile as rec
from hf_efficient.records import trace as traced
from hf_efficient.reporting.labels import or_nothing, told
from hf_efficient.reporting.terminal import FoundTable, drawn, grid
from hf_efficient.text import count, counted, flops, instrument_cost, share, short_count, short_seconds, size

_LONGEST_SHAPES = 60
_MOST_PROFILE_ROWS = 10


def found_tables(profile: rec.ProfileAccount, most: int) -> Iterator[FoundTable]:
    if profile.operators is not None and profile.operators.operators:
        yield _operators(profile.operators, most)
    for snapshot in profile.memory:
        yield _snapshot(snapshot, most)
        if snapshot.modules:
            yield _modules(snapshot, most)
    yield from (_functions(found, most) for found in profile.functions)
    yield from (_lines(function) for function in (profile.lines.functions if profile.lines is not None else ()))
    if profile.host_memory is not None and profile.host_memory.lines:
        yield _host_memory(profile.host_memory, most)


def instrument_rows(instruments: Sequence[rec.InstrumentAccount]) -> list[tuple[str, str]]:
    return [
        (one.name, instrument_cost(one.cost_seconds, one.own_seconds, one.steps, one.files, one.note))
        for one in instruments
    ]


def shared_remark(instruments: Sequence[rec.InstrumentAccount]) -> str:
    """What to know of the costs where several instruments slowed the steps; empty where none shares any."""
    slower = [one.name for one in instruments if one.cost_seconds is not None and one.cost_seconds > one.own_seconds]
    if len(slower) < 2:
        return ""
    return f"{' and '.join(slower)} ran at the same time: what their steps took longer is in the cost of each."


def profile_renderables(profile: rec.ProfileAccount) -> Iterator[RenderableType]:
    for found in found_tables(profile, _MOST_PROFILE_ROWS):
        yield Text(f"{found.title}: {found.summary}.", "bold")
        yield drawn(found)
    yield Text("Instruments:", "bold")
    yield grid([(f"  {name}", text) for name, text in instrument_rows(profile.instruments)], style="")
    if remark := shared_remark(profile.instruments):
        yield Text(f"  {remark}", "dim")


def _operators(found: rec.OperatorTable, most: int) -> FoundTable:
    summary = f"{counted(found.steps, 'step')} traced, {short_seconds(found.wall_seconds)} under the profiler"
    if found.self_device_seconds is not None:
        part = found.self_device_seconds / found.wall_seconds if found.wall_seconds else 0.0
        summary += f"; kernels took {short_seconds(found.self_device_seconds)} on the device, {share(part)} of that"
    summary += f"; operators took {short_seconds(found.self_cpu_seconds)} on the host"
    times = ["host", "share"] if found.self_device_seconds is None else ["device", "share", "host"]
    rows = [_operator_cells(found, one) for one in found.operators[:most]]
    left_out = _rows_left(len(found.operators) - len(rows) + found.left_out)
    headings = ["operator", "calls", *times, "FLOPs", "shapes"]
    return FoundTable(headings, rows, "Operators", summary, left_out, (0, len(headings) - 1))


def _operator_cells(found: rec.OperatorTable, one: rec.OperatorTime) -> list[str]:
    times = [short_seconds(one.self_cpu_seconds)]
    if one.self_device_seconds is None:
        times.append(_part(one.self_cpu_seconds, found.self_cpu_seconds))
    else:
        part = _part(one.self_device_seconds, found.self_device_seconds or 0.0)
        times = [short_seconds(one.self_device_seconds), part, *times]
    shapes = one.shapes if len(one.shapes) <= _LONGEST_SHAPES else f"{one.shapes[:_LONGEST_SHAPES]} ..."
    return [one.name, f"{one.calls:,}", *times, flops(one.flops) if one.flops else "", shapes]


def _held(place: str, held: int, peak: int, number: int, text: str) -> list[str]:
    return [place, size(held), _part(held, peak), f"{number:,}", text]


def _snapshot(found: rec.MemorySnapshot, most: int) -> FoundTable:
    peak, shown = found.peak_bytes, found.sites[:most]
    rows = [_held(one.place, one.bytes, peak, one.blocks, ", ".join(one.called_from)) for one in shown]
    more = found.other_sites_bytes + sum(site.bytes for site in found.sites[most:])
    headings = ("asked for by", "size", "share", "blocks", "called from")
    return FoundTable(headings, rows, "CUDA memory", _snapshot_summary(found), _bytes_left(more, "lines"), (0, 4))


def _snapshot_summary(found: rec.MemorySnapshot) -> str:
    beside = told(found.device_free_bytes, size, " with {} left on the device")
    parts = [
        f"{size(found.allocated_bytes)} in use of {size(found.reserved_bytes)} reserved",
        f"{size(found.inactive_split_bytes)} free in {found.inactive_split_blocks:,} pieces beside others in use",
        f"the largest free piece is {size(found.largest_free_bytes)}",
        f"at most {size(found.peak_bytes)} at once in the last {found.history_events:,} events",
        told(found.allocation_retries, "{:,}".format, "{} allocation retries"),
        told(found.failed_bytes, size, f"{{}} could not be allocated{beside}"),
    ]
    return f"{found.moment}: {'; '.join(filter(None, parts))}"


def _modules(found: rec.MemorySnapshot, most: int) -> FoundTable:
    rows = [_held(one.module, one.bytes, found.peak_bytes, one.blocks, one.place) for one in found.modules[:most]]
    more = found.other_modules_bytes + sum(held.bytes for held in found.modules[most:])
    summary = f"{found.moment}: the {size(found.peak_bytes)} at the peak by the modules that they are for"
    headings = ("module", "size", "share", "blocks", "most of it asked for by")
    return FoundTable(headings, rows, "CUDA memory by module", summary, _bytes_left(more, "modules"), (0, 4))


def _functions(found: rec.FunctionTable, most: int) -> FoundTable:
    process = "the thread that trains" if found.process == "main" else f"data loader {found.process}"
    rows = []
    for one in found.functions[:most]:
        calls, part = "sampled" if one.calls is None else f"{one.calls:,}", _part(one.self_seconds, found.seconds)
        rows.append([one.place, short_seconds(one.self_seconds), part, short_seconds(one.total_seconds), calls])
    left_out = _rows_left(len(found.functions) - len(rows) + found.left_out)
    summary = f"{process}: {short_seconds(found.seconds)} seen by {found.tool}"
    headings = ("function", "own time", "share", "with calls", "calls")
    return FoundTable(headings, rows, "Python functions", summary, left_out)


def _lines(found: rec.FunctionLines) -> FoundTable:
    rows = [
        [str(one.line), short_seconds(one.seconds), _part(one.seconds, found.seconds), f"{one.hits:,}", one.text]
        for one in found.lines
    ]
    summary = f"{found.place}: {short_seconds(found.seconds)}, line by line, on the thread that trains"
    return FoundTable(("line", "time", "share", "hits", "text"), rows, "Python lines", summary, words=(0, 4))


def _host_memory(found: rec.HostMemoryTable, most: int) -> FoundTable:
    rows = [_held(one.place, one.bytes, found.peak_bytes, one.allocations, one.text) for one in found.lines[:most]]
    held = size(sum(line.bytes for line in found.lines))
    summary = f"{size(found.peak_bytes)} at the peak since the instrument began; {held} under the named functions"
    headings = ("line", "held", "share", "allocations", "text")
    return FoundTable(headings, rows, "Host memory", summary, words=(0, 4))


def _part(value: float, whole: float) -> str:
    return share(value / whole) if whole > 0 else ""


def _rows_left(count: int) -> str:
    return f"{counted(count, 'row')} with less time left out here." if count > 0 else ""


def _bytes_left(count: int, of: str) -> str:
    return f"{size(count)} of other {of} are left out here." if count else ""


_MOST_TRACE_ROWS = 8
_CAUSES = {"host_bound": "host", "launch_bound": "launch", "other": "other"}


def trace_title(trace: traced.TraceBreakdown, name: str = "") -> str:
    file = trace.file
    words = [f"{count(file.events)} events in {size(file.read_bytes)}", f"{short_seconds(trace.window_seconds)} long"]
    if file.rank is not None and (file.world_size or 1) > 1:
        words.append(f"rank {file.rank} of {file.world_size}")
    if trace.steps:
        words.append(f"steps {trace.steps[0].number} to {trace.steps[-1].number}")
    return f"{name or file.path}: {', '.join(words)}"


def device_title(device: traced.DeviceBreakdown) -> str:
    return f"device {device.device}" + (f", {device.name}" if device.name else "")


def device_lines(device: traced.DeviceBreakdown) -> Iterator[str]:
    if device.launches is not None:
        launches = device.launches
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
    if device.communication is not None:
        held = device.communication
        yield (
            f"{count(held.kernels)} communication kernels run for {short_seconds(held.seconds)}: "
            f"{share(held.overlap_share)} of that beside computation, {short_seconds(held.exposed_seconds)} exposed "
            f"({share(held.exposed_share)} of the window)"
        )


def _percentiles(values: traced.Percentiles) -> str:
    words = (("p10", values.p10_seconds), ("p50", values.p50_seconds), ("p90", values.p90_seconds))
    return ", ".join(f"{name} {short_seconds(value)}" for name, value in words)


def device_time_table(device: traced.DeviceBreakdown, name: str) -> FoundTable:
    busy, window = device.busy, device.busy.window_seconds
    exposed = device.communication.exposed_seconds if device.communication else 0.0
    parts = [
        ("computing", busy.compute_seconds),
        ("only communicating", exposed),
        ("only copying or setting memory", busy.busy_seconds - busy.compute_seconds - exposed),
        ("idle, host-bound", busy.idle.host_bound_seconds),
        ("idle, launch-bound", busy.idle.launch_bound_seconds),
        ("idle, other", busy.idle.other_seconds),
    ]
    shown = [(label, max(seconds, 0.0)) for label, seconds in parts if seconds > 0 or label == "computing"]
    shares = [seconds / window if window else 0.0 for _, seconds in shown]
    rows = [(label, short_seconds(taken), _percent(part)) for (label, taken), part in zip(shown, shares, strict=True)]
    total = ("total", short_seconds(window), "100.0%" if window else "")
    return FoundTable((name, "time", "share"), rows, shares=shares, total=total)


def family_table(families: Sequence[traced.FamilyTime], title: str, counted: str) -> FoundTable:
    rows = [(one.family, short_seconds(one.seconds), _percent(one.share), f"{one.count:,}") for one in families]
    return FoundTable((title, "time", "share", counted), rows, shares=[one.share for one in families])


def device_tables(device: traced.DeviceBreakdown, name: str, most: int) -> Iterator[FoundTable]:
    """Its time, work by family, kernels; copies and gaps where there are some."""
    yield device_time_table(device, name)
    yield family_table(device.families, "kernels, copies and memsets by family", "count")
    kernels = [
        _timed(_kernel_name(one), one.seconds, one.share, one.count, one.mean_seconds) for one in device.kernels[:most]
    ]
    yield FoundTable(("kernel (operator)", "time", "share", "count", "mean"), kernels)
    if device.copies:
        yield FoundTable(("copies", "time", "count", "small", "bytes", "rate"), [*map(_copy, device.copies)])
    if device.gaps:
        headings = ("what the host did in the longest gaps", "gap", "at", "step", "bound by")
        yield FoundTable(headings, [*map(_gap, device.gaps[:most])])


def host_tables(trace: traced.TraceBreakdown, most: int) -> Iterator[FoundTable]:
    """Waits for the device, steps, operators; where no device was traced, the operators also by family."""
    if trace.syncs:
        headings = ("the host waited for the device in", "count", "waited", "idle after")
        yield FoundTable(headings, [*map(_sync, trace.syncs[:most])])
    if trace.steps:
        yield _step_table(trace.steps, most)
    if trace.host is not None:
        if not trace.devices:
            yield family_table(trace.host.families, "operators by family", "calls")
        held = trace.host.operators[:most]
        rows = [_timed(one.name, one.self_seconds, one.share, one.count, one.total_seconds) for one in held]
        yield FoundTable(("operator on the host", "self time", "share", "calls", "total"), rows)


def _kernel_name(one: traced.KernelTime) -> str:
    return one.name.removeprefix("at::native::") + (f" ({one.operator})" if one.operator else "")


def _timed(name: str, seconds: float, share: float, count: int, other_seconds: float) -> tuple[str, ...]:
    return name, short_seconds(seconds), _percent(share), f"{count:,}", short_seconds(other_seconds)


def _copy(one: traced.CopyKind) -> tuple[str, ...]:
    name = one.direction + (f", {one.host_memory}" if one.host_memory else "")
    held = or_nothing(one.bytes, size, "not known")
    rate = told(one.bytes_per_second, short_count, "{}B/s") or "not known"
    return name, short_seconds(one.seconds), f"{one.count:,}", f"{one.small_count:,}", held, rate


def _gap(one: traced.DeviceGap) -> tuple[str, ...]:
    host = ", ".join(f"{name} {100 * part:.0f}%" for name, part in one.host) or "not known"
    times = short_seconds(one.seconds), short_seconds(one.start_seconds)
    return host, *times, told(one.step, str), _CAUSES[one.cause]


def _sync(one: traced.SyncSite) -> tuple[str, ...]:
    place = ", ".join(filter(None, (one.site, one.operator, one.call)))
    return place, f"{one.count:,}", short_seconds(one.seconds), short_seconds(one.idle_after_seconds)


def _step_table(steps: Sequence[traced.TraceStep], most: int) -> FoundTable:
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


def trace_renderables(trace: traced.TraceBreakdown) -> list[RenderableType]:
    parts = [part for device in trace.devices for part in _device(device)]
    parts += map(drawn, host_tables(trace, _MOST_TRACE_ROWS))
    remarks = [Text(one, "yellow") for one in trace.remarks]
    return [Text(trace_title(trace), "bold"), *remarks, *(Padding(part, (1, 0, 0, 0)) for part in parts)]


def _device(device: traced.DeviceBreakdown) -> list[RenderableType]:
    tables = [*map(drawn, device_tables(device, device_title(device), _MOST_TRACE_ROWS))]
    lines = "\n".join(device_lines(device))
    return [*tables[:3], *([Text(lines)] if lines else []), *tables[3:]]
