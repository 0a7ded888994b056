"""What the deeper instruments of a run found, as tables of one shape for terminal and page; and on a terminal."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from hf_efficient.records import profile as rec
from hf_efficient.reporting.terminal import FoundTable, drawn, grid
from hf_efficient.text import counted, flops, instrument_cost, share, short_seconds, size

_LONGEST_SHAPES = 60
_MOST_ROWS = 10


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
    for found in found_tables(profile, _MOST_ROWS):
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
    total = found.self_cpu_seconds if found.self_device_seconds is None else found.self_device_seconds
    mine = one.self_cpu_seconds if one.self_device_seconds is None else one.self_device_seconds
    times = [short_seconds(mine), _part(mine, total)]
    if one.self_device_seconds is not None:
        times.append(short_seconds(one.self_cpu_seconds))
    shapes = one.shapes if len(one.shapes) <= _LONGEST_SHAPES else f"{one.shapes[:_LONGEST_SHAPES]} ..."
    return [one.name, f"{one.calls:,}", *times, flops(one.flops) if one.flops else "", shapes]


def _snapshot(found: rec.MemorySnapshot, most: int) -> FoundTable:
    rows = [
        [one.place, size(one.bytes), _part(one.bytes, found.peak_bytes), f"{one.blocks:,}", ", ".join(one.called_from)]
        for one in found.sites[:most]
    ]
    more = found.other_sites_bytes + sum(site.bytes for site in found.sites[most:])
    headings = ("asked for by", "size", "share", "blocks", "called from")
    return FoundTable(headings, rows, "CUDA memory", _snapshot_summary(found), _bytes_left(more, "lines"), (0, 4))


def _snapshot_summary(found: rec.MemorySnapshot) -> str:
    parts = [
        f"{size(found.allocated_bytes)} in use of {size(found.reserved_bytes)} reserved",
        f"{size(found.inactive_split_bytes)} free in {found.inactive_split_blocks:,} pieces beside others in use",
        f"the largest free piece is {size(found.largest_free_bytes)}",
        f"at most {size(found.peak_bytes)} at once in the last {found.history_events:,} events",
    ]
    if found.allocation_retries is not None:
        parts.append(f"{found.allocation_retries:,} allocation retries")
    if found.failed_bytes is not None:
        free = found.device_free_bytes
        beside = "" if free is None else f" with {size(free)} left on the device"
        parts.append(f"{size(found.failed_bytes)} could not be allocated{beside}")
    return f"{found.moment}: {'; '.join(parts)}"


def _modules(found: rec.MemorySnapshot, most: int) -> FoundTable:
    rows = []
    for one in found.modules[:most]:
        modules = f"{one.modules:,}" if one.modules else ""
        part = _part(one.bytes, found.peak_bytes)
        rows.append([one.module, size(one.bytes), part, f"{one.blocks:,}", modules, one.place])
    more = found.other_modules_bytes + sum(held.bytes for held in found.modules[most:])
    summary = f"{found.moment}: the {size(found.peak_bytes)} at the peak by the modules that they are for"
    headings = ("module", "size", "share", "blocks", "modules", "most of it asked for by")
    return FoundTable(headings, rows, "CUDA memory by module", summary, _bytes_left(more, "modules"), (0, 5))


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
    rows = [
        [one.place, size(one.bytes), _part(one.bytes, found.peak_bytes), f"{one.allocations:,}", one.text]
        for one in found.lines[:most]
    ]
    held = size(sum(line.bytes for line in found.lines))
    summary = f"{size(found.peak_bytes)} at the peak since the instrument began; {held} under the named functions"
    headings = ("line", "held", "share", "allocations", "text")
    return FoundTable(headings, rows, "Host memory", summary, words=(0, 4))


def _part(value: float, whole: float) -> str:
    return share(value / whole) if whole > 0 else ""


def _rows_left(count: int) -> str:
    return f"{count:,} rows with less time are left out here." if count > 0 else ""


def _bytes_left(count: int, of: str) -> str:
    return f"{size(count)} of other {of} are left out here." if count else ""
