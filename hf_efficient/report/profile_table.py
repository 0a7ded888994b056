"""What the deeper instruments of a run found, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hf_efficient.records import ProfileAccount
from hf_efficient.report.profile_found import FoundTable, found_tables
from hf_efficient.report.profile_rows import instrument_rows, shared_remark

__all__ = ["profile_renderables"]

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
