"""Several runs on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hf_efficient.report.comparison_rows import comparison_rows, letter
from hf_efficient.report.run_data import RunData

__all__ = ["comparison_renderables"]

_STYLES = {"better": "green", "worse": "red", "": "dim"}


def comparison_renderables(runs: Sequence[RunData]) -> list[RenderableType]:
    """Which runs, and a table of their headline figures with the differences from the first."""
    names = Table.grid(padding=(0, 2, 0, 0))
    for place, run in enumerate(runs):
        names.add_row(Text(letter(place), "bold"), Text(run.name), Text(run.directory, "dim"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for place in range(len(runs)):
        table.add_column(letter(place), justify="right", no_wrap=True)
        if place:
            table.add_column("", justify="right", no_wrap=True)
    for row in comparison_rows(runs):
        cells: list[Text] = []
        for place, each in enumerate(row.runs):
            cells.append(Text(each.value or "n/a"))
            if place:
                cells.append(Text(each.change, _STYLES[each.kind]))
        table.add_row(Text(row.label), *cells)
    return [names, Text(), table]
