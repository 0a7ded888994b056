"""What the deeper instruments of a run found, on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hf_efficient.records import ProfileAccount
from hf_efficient.report.profile_rows import instrument_rows, operator_cells, operator_headings, operator_summary
from hf_efficient.report.snapshot_rows import SITE_HEADINGS, site_cells, snapshot_summary

__all__ = ["profile_renderables"]

_MOST_ROWS = 10
_TEXTS = ("operator", "shapes", "asked for by", "called from")


def profile_renderables(profile: ProfileAccount) -> Iterator[RenderableType]:
    """The dearest operators, the peaks of memory, then a line per instrument: what it cost and wrote."""
    if profile.operators is not None and profile.operators.operators:
        yield Text(f"Operators: {operator_summary(profile.operators)}.", "bold")
        shown = profile.operators.operators[:_MOST_ROWS]
        rows = [operator_cells(profile.operators, operator) for operator in shown]
        yield _table(operator_headings(profile.operators), rows)
    for snapshot in profile.memory:
        yield Text(f"CUDA memory {snapshot_summary(snapshot)}.", "bold")
        rows = [site_cells(snapshot, site) for site in snapshot.sites[:_MOST_ROWS]]
        yield _table(SITE_HEADINGS, rows)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for name, told in instrument_rows(profile.instruments):
        grid.add_row(Text(f"  {name}"), Text(told))
    yield Text("Instruments:", "bold")
    yield grid


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        is_text = heading in _TEXTS
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=not is_text)
    for row in rows:
        # On a narrow terminal texts are cut, not the numbers.
        table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
    return table
