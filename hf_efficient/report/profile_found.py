"""The tables of a profile: one shape for terminal and page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hf_efficient.records import MemorySnapshot, OperatorTable, ProfileAccount
from hf_efficient.report.profile_rows import operator_cells, operator_headings, operator_summary
from hf_efficient.report.python_rows import (
    FUNCTION_HEADINGS,
    HOST_MEMORY_HEADINGS,
    LINE_HEADINGS,
    function_cells,
    function_summary,
    host_memory_cells,
    host_memory_summary,
    line_cells,
    line_summary,
)
from hf_efficient.report.snapshot_rows import MODULE_HEADINGS, SITE_HEADINGS, module_cells, site_cells, snapshot_summary
from hf_efficient.units import size

__all__ = ["FoundTable", "found_tables"]


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
