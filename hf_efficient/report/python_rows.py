"""What profilers of Python found, as lines and cells."""

from __future__ import annotations

from hf_efficient.records import CodeLine, FunctionLines, FunctionTable, FunctionTime, HostMemoryLine, HostMemoryTable
from hf_efficient.units import share, short_seconds, size

__all__ = [
    "FUNCTION_HEADINGS",
    "HOST_MEMORY_HEADINGS",
    "LINE_HEADINGS",
    "function_cells",
    "function_summary",
    "host_memory_cells",
    "host_memory_summary",
    "line_cells",
    "line_summary",
]

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
