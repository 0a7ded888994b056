"""The data of a plan on a terminal: how long the examples are, and what each kind of batch makes of them."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hf_efficient.records.plan import PlannedData
from hf_efficient.records.planned_advice import PlannedBatching
from hf_efficient.units import share

__all__ = ["data_renderables", "data_sentence"]


def data_renderables(data: PlannedData) -> list[RenderableType]:
    """A sentence, and a table of the kinds of batches where there are several."""
    return [Text(f"\nData: {data_sentence(data)}"), *([_kinds(data.batchings)] if data.batchings else [])]


def data_sentence(data: PlannedData) -> str:
    """How long the examples are, and what they come to."""
    return (
        f"{data.examples:,} examples of {data.tokens:,} tokens, the longest {data.longest_tokens:,}; "
        f"{share(data.padding_share)} of a step is padding.{_evaluated(data)}"
    )


def _evaluated(data: PlannedData) -> str:
    if not data.evaluations:
        return ""
    times = "once" if data.evaluations == 1 else f"{data.evaluations:,} times"
    return f" {data.evaluation_rows:,} rows are evaluated {times}."


def _kinds(kinds: list[PlannedBatching]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("an epoch's batches")
    for name in ("positions", "padding", "steps"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in kinds:
        name = f"  {one.name}{' (the recipe)' if one.chosen else ''}"
        table.add_row(name, f"{one.epoch_positions:,}", share(one.padding_share), f"{one.epoch_steps:,}")
    return table
