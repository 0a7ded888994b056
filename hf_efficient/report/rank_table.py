"""The ranks of a run on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hf_efficient.records import RunAccount
from hf_efficient.report.rank_rows import across_lines, rank_rows

__all__ = ["rank_renderables"]

_MOST = 16


def rank_renderables(account: RunAccount) -> Iterator[RenderableType]:
    """A table of the ranks, the first of many, and what came of their training together; nothing of one rank."""
    if account.across is None:
        return
    rows = rank_rows(account)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("rank", no_wrap=True)
    table.add_column("on")
    for name in ("training", *rows[0].phases, "waits", "memory"):
        table.add_column(name, justify="right", no_wrap=name == "memory", overflow="fold")
    for row in rows[:_MOST]:
        cells = (row.training, *row.phases.values(), row.waited or "n/a", row.memory or "n/a")
        table.add_row(Text(row.rank), Text(row.where), *cells)
    yield table
    if len(rows) > _MOST:
        yield Text(f"and {len(rows) - _MOST} more ranks: report.html, run.json", "dim")
    for line in across_lines(account):
        yield Text(line)
