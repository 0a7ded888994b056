"""What the deeper instruments of a run found, as lines and cells.

What profilers of Python found, as lines and cells.

A snapshot of the CUDA allocator, as lines and cells.

The tables of a profile: one shape for terminal and page.

What the deeper instruments of a run found, on a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hf_efficient.records.profile import (
    AllocationSite,
    CodeLine,
    FunctionLines,
    FunctionTable,
    FunctionTime,
    HostMemoryLine,
    HostMemoryTable,
    InstrumentAccount,
    MemorySnapshot,
    ModuleAllocations,
    OperatorTable,
    OperatorTime,
    ProfileAccount,
)
from hf_efficient.text import flops, share, short_seconds, size

_LONGEST_SHAPES = 60


def cost_line(instrument: InstrumentAccount) -> str:
    """One instrument in a sentence: ``profile.trace cost 1.2 s over 4 steps: ...; wrote profile/...``."""
    return f"profile.{instrument.name} {_cost(instrument)}"


def shared_remark(instruments: Sequence[InstrumentAccount]) -> str:
    """What to know of the costs where several instruments slowed the steps; empty where none shares any."""
    slower = [one.name for one in instruments if one.cost_seconds is not None and one.cost_seconds > one.own_seconds]
    if len(slower) < 2:
        return ""
    return f"{' and '.join(slower)} ran at the same time: what their steps took longer is in the cost of each."


def instrument_rows(instruments: Sequence[InstrumentAccount]) -> list[tuple[str, str]]:
    """The same with the name apart."""
    return [(instrument.name, _cost(instrument)) for instrument in instruments]


def _cost(instrument: InstrumentAccount) -> str:
    if instrument.cost_seconds is None:
        told = "did not run"
    else:
        over = f" over {instrument.steps} steps" if instrument.steps else ""
        told = f"cost {short_seconds(instrument.cost_seconds)}{over}"
        told += f" ({short_seconds(instrument.own_seconds)} of it in its own code)"
    if instrument.note:
        told += f": {instrument.note}"
    return f"{told}; wrote {', '.join(instrument.files)}" if instrument.files else told


def operator_summary(table: OperatorTable) -> str:
    """What part of the traced steps the operators are."""
    told = f"{table.steps} steps were traced, {short_seconds(table.wall_seconds)} under the profiler"
    if table.self_device_seconds is not None:
        part = table.self_device_seconds / table.wall_seconds if table.wall_seconds else 0.0
        told += f"; kernels took {short_seconds(table.self_device_seconds)} on the device, {share(part)} of that"
    return f"{told}; operators took {short_seconds(table.self_cpu_seconds)} on the host"


def operator_headings(table: OperatorTable) -> list[str]:
    """Of the columns of ``operator_cells``."""
    device = ["device", "share"] if table.self_device_seconds is not None else []
    return ["operator", "calls", *device, "host", *([] if device else ["share"]), "FLOPs", "shapes"]


def operator_cells(table: OperatorTable, operator: OperatorTime) -> list[str]:
    """One operator: its self times, and their share of those of all operators."""
    total = table.self_cpu_seconds if table.self_device_seconds is None else table.self_device_seconds
    mine = operator.self_cpu_seconds if operator.self_device_seconds is None else operator.self_device_seconds
    part = share(mine / total) if total > 0 else ""
    device = [] if operator.self_device_seconds is None else [short_seconds(operator.self_device_seconds), part]
    host = [short_seconds(operator.self_cpu_seconds), *([] if device else [part])]
    return [operator.name, f"{operator.calls:,}", *device, *host, _flops(operator.flops), _shapes(operator.shapes)]


def _flops(number: int | None) -> str:
    return f"{flops(number)}" if number else ""


def _shapes(shapes: str) -> str:
    return shapes if len(shapes) <= _LONGEST_SHAPES else f"{shapes[:_LONGEST_SHAPES]} ..."


FUNCTION_HEADINGS = ("function", "own time", "share", "with calls", "calls")
LINE_HEADINGS = ("line", "time", "share", "hits", "text")
HOST_MEMORY_HEADINGS = ("line", "held", "share", "allocations", "text")


def function_summary(table: FunctionTable) -> str:
    """Which process, how, and how long."""
    process = "the thread that trains" if table.process == "main" else f"data loader {table.process}"
    return f"{process}: {short_seconds(table.seconds)} seen by {table.tool}"


def function_cells(table: FunctionTable, function: FunctionTime) -> list[str]:
    """One function."""
    calls = "sampled" if function.calls is None else f"{function.calls:,}"
    own, total = short_seconds(function.self_seconds), short_seconds(function.total_seconds)
    return [function.place, own, _part(function.self_seconds, table.seconds), total, calls]


def line_summary(function: FunctionLines) -> str:
    """Which function, and how long."""
    return f"{function.place}: {short_seconds(function.seconds)}, line by line, on the thread that trains"


def line_cells(function: FunctionLines, line: CodeLine) -> list[str]:
    """One of its lines."""
    part = _part(line.seconds, function.seconds)
    return [str(line.line), short_seconds(line.seconds), part, f"{line.hits:,}", line.text]


def host_memory_summary(table: HostMemoryTable) -> str:
    """The peak, and what part of it the named functions hold."""
    held = sum(line.bytes for line in table.lines)
    return f"{size(table.peak_bytes)} at the peak since the instrument began; {size(held)} under the named functions"


def host_memory_cells(table: HostMemoryTable, line: HostMemoryLine) -> list[str]:
    """One line of a named function."""
    return [line.place, size(line.bytes), _part(line.bytes, table.peak_bytes), f"{line.allocations:,}", line.text]


def _part(value: float, whole: float) -> str:
    return share(value / whole) if whole > 0 else ""


MODULE_HEADINGS = ("module", "size", "share", "blocks", "modules", "most of it asked for by")
SITE_HEADINGS = ("asked for by", "size", "share", "blocks", "called from")


def snapshot_summary(snapshot: MemorySnapshot) -> str:
    """Its figures in a sentence, without a full stop."""
    told = [
        f"{size(snapshot.allocated_bytes)} in use of {size(snapshot.reserved_bytes)} reserved",
        f"{size(snapshot.inactive_split_bytes)} free in {snapshot.inactive_split_blocks:,} pieces beside others in use",
        f"the largest free piece is {size(snapshot.largest_free_bytes)}",
        f"at most {size(snapshot.peak_bytes)} at once in the last {snapshot.history_events:,} events",
    ]
    if snapshot.allocation_retries is not None:
        told.append(f"{snapshot.allocation_retries:,} allocation retries")
    if snapshot.failed_bytes is not None:
        free = (
            "" if snapshot.device_free_bytes is None else f" with {size(snapshot.device_free_bytes)} left on the device"
        )
        told.append(f"{size(snapshot.failed_bytes)} could not be allocated{free}")
    return f"{snapshot.moment}: {'; '.join(told)}"


def site_cells(snapshot: MemorySnapshot, site: AllocationSite) -> list[str]:
    """One line of code, and its part of the peak."""
    part = share(site.bytes / snapshot.peak_bytes) if snapshot.peak_bytes else ""
    return [site.place, size(site.bytes), part, f"{site.blocks:,}", ", ".join(site.called_from)]


def module_cells(snapshot: MemorySnapshot, held: ModuleAllocations) -> list[str]:
    """One module, or those that differ in their numbers alone, and their part of the peak."""
    part = share(held.bytes / snapshot.peak_bytes) if snapshot.peak_bytes else ""
    many = f"{held.modules:,}" if held.modules else ""
    return [held.module, size(held.bytes), part, f"{held.blocks:,}", many, held.place]


@dataclass(frozen=True)
class FoundTable:
    """What one instrument found.

    Attributes:
        title: its heading.
        summary: a sentence without a full stop.
        headings: of the columns; the first and the last hold texts where ``text_last``.
        rows: cells.
        left_out: what is not shown, in words.
        text_last: whether the last column holds text.
    """

    title: str
    summary: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left_out: str = ""
    text_last: bool = True


def found_tables(profile: ProfileAccount, most: int) -> Iterator[FoundTable]:
    """All of them, in order.

    Args:
        profile: of a run.
        most: rows of each; of a function's lines, all.
    """
    if profile.operators is not None and profile.operators.operators:
        yield _operators(profile.operators, most)
    for snapshot in profile.memory:
        yield _snapshot(snapshot, most)
        if snapshot.modules:
            yield _modules(snapshot, most)
    for table in profile.functions:
        rows = [function_cells(table, function) for function in table.functions[:most]]
        left_out = _rows_left(len(table.functions) - len(rows) + table.left_out)
        yield FoundTable("Python functions", function_summary(table), FUNCTION_HEADINGS, rows, left_out, False)
    for function in profile.lines.functions if profile.lines is not None else ():
        rows = [line_cells(function, line) for line in function.lines]
        yield FoundTable("Python lines", line_summary(function), LINE_HEADINGS, rows)
    if profile.host_memory is not None and profile.host_memory.lines:
        held = profile.host_memory
        rows = [host_memory_cells(held, line) for line in held.lines[:most]]
        yield FoundTable("Host memory", host_memory_summary(held), HOST_MEMORY_HEADINGS, rows)


def _operators(table: OperatorTable, most: int) -> FoundTable:
    rows = [operator_cells(table, operator) for operator in table.operators[:most]]
    left_out = _rows_left(len(table.operators) - len(rows) + table.left_out)
    return FoundTable("Operators", operator_summary(table), operator_headings(table), rows, left_out)


def _snapshot(snapshot: MemorySnapshot, most: int) -> FoundTable:
    rows = [site_cells(snapshot, site) for site in snapshot.sites[:most]]
    more = snapshot.other_sites_bytes + sum(site.bytes for site in snapshot.sites[most:])
    left_out = f"{size(more)} of other lines are left out here." if more else ""
    return FoundTable("CUDA memory", snapshot_summary(snapshot), SITE_HEADINGS, rows, left_out)


def _modules(snapshot: MemorySnapshot, most: int) -> FoundTable:
    rows = [module_cells(snapshot, held) for held in snapshot.modules[:most]]
    more = snapshot.other_modules_bytes + sum(held.bytes for held in snapshot.modules[most:])
    left_out = f"{size(more)} of other modules are left out here." if more else ""
    summary = f"{snapshot.moment}: the {size(snapshot.peak_bytes)} at the peak by the modules that they are for"
    return FoundTable("CUDA memory by module", summary, MODULE_HEADINGS, rows, left_out)


def _rows_left(count: int) -> str:
    return f"{count:,} rows with less time are left out here." if count > 0 else ""


_MOST_ROWS = 10


def profile_renderables(profile: ProfileAccount) -> Iterator[RenderableType]:
    """What each instrument found, then a line per instrument: what it cost and wrote."""
    for found in found_tables(profile, _MOST_ROWS):
        yield Text(f"{found.title}: {found.summary}.", "bold")
        yield _table(found)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for name, told in instrument_rows(profile.instruments):
        grid.add_row(Text(f"  {name}"), Text(told))
    yield Text("Instruments:", "bold")
    yield grid
    if remark := shared_remark(profile.instruments):
        yield Text(f"  {remark}", "dim")


def _table(found: FoundTable) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    last = len(found.headings) - 1
    for place, heading in enumerate(found.headings):
        is_text = place == 0 or (place == last and found.text_last)
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=not is_text)
    for row in found.rows:
        # On a narrow terminal texts are cut, not the numbers.
        table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
    return table
