"""What the deeper instruments of a run found, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hf_efficient.records import OperatorTable, ProfileAccount
from hf_efficient.report.profile_rows import instrument_rows, operator_cells, operator_headings, operator_summary

__all__ = ["profile_renderables"]

_MOST_OPERATORS = 10
_TEXTS = ("operator", "shapes")


def profile_renderables(profile: ProfileAccount) -> Iterator[RenderableType]:
    """The dearest operators, then a line per instrument: what it cost and wrote."""
    if profile.operators is not None and profile.operators.operators:
        yield Text(f"Operators: {operator_summary(profile.operators)}.", "bold")
        yield _operators(profile.operators)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for name, told in instrument_rows(profile.instruments):
        grid.add_row(Text(f"  {name}"), Text(told))
    yield Text("Instruments:", "bold")
    yield grid


def _operators(found: OperatorTable) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    headings = operator_headings(found)
    for heading in headings:
        is_text = heading in _TEXTS
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=not is_text)
    for operator in found.operators[:_MOST_OPERATORS]:
        # On a narrow terminal names and shapes are cut, not the numbers.
        table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in operator_cells(found, operator)))
    return table
