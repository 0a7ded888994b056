"""On a terminal: what to change in a recipe for an accelerator, and the most that fits there."""

from __future__ import annotations

import json
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hf_efficient.records.planned_advice import PlannedAdvice, PlannedChange, PlannedLargest, PlannedOutcome
from hf_efficient.units import short_seconds

__all__ = ["advice_renderables", "advice_title", "largest_lines", "largest_renderables", "override_lines"]

_GIB = 2**30


def advice_renderables(advice: PlannedAdvice) -> list[RenderableType]:
    """The ranked changes, and what was left out."""
    parts: list[RenderableType] = [Text(), Text(advice_title(advice), "bold")]
    if not advice.changes:
        return parts
    parts.append(_table(advice))
    if not any(change.after.fits for change in advice.changes):
        parts.append(Text("None of them makes it fit: it takes a smaller model or a larger accelerator."))
    return [*parts, *(Text(f"- left out: {told}", "dim") for told in advice.left_out)]


def advice_title(advice: PlannedAdvice) -> str:
    """What the changes are for."""
    what = "To run faster on" if advice.before.fits else "To fit"
    head = f"{what} {advice.accelerator} ({advice.usable_memory_bytes / _GIB:.1f} GiB)"
    if not advice.changes:
        return f"{head}: no change of the recipe is known that would help."
    return f"{head}, each change rehearsed, the best first"


def largest_renderables(largest: PlannedLargest, rows: int, tokens: int) -> list[RenderableType]:
    """The largest micro-batch and the longest rows.

    Args:
        largest: what was found.
        rows, tokens: of the recipe's own micro-batch.
    """
    head = Text(f"The most that fits {largest.accelerator}", "bold")
    return [Text(), head, *(Text(f"  {line}") for line in largest_lines(largest, rows, tokens))]


def largest_lines(largest: PlannedLargest, rows: int, tokens: int) -> list[str]:
    """The largest micro-batch and the longest rows, a line each; the arguments are ``largest_renderables``'."""
    return [_most_rows(largest, tokens), _most_tokens(largest, rows)]


def override_lines(change: PlannedChange) -> list[str]:
    """A change as it is written on the command line."""
    return [f"{key}={_written(value)}" for key, value in change.overrides.items()]


def _most_rows(largest: PlannedLargest, tokens: int) -> str:
    if largest.micro_batch_rows == 0:
        return f"not even one row of {tokens:,} tokens"
    more = " or more" if largest.rows_bounded else ""
    noun = "row" if largest.micro_batch_rows == 1 else "rows"
    return (
        f"{largest.micro_batch_rows:,}{more} {noun} of {tokens:,} tokens: "
        f"train.per_device_train_batch_size={largest.micro_batch_rows}"
    )


def _most_tokens(largest: PlannedLargest, rows: int) -> str:
    noun = "row" if rows == 1 else "rows"
    if largest.row_tokens == 0:
        return f"not even {rows:,} {noun} of {largest.row_tokens_step} tokens"
    bound = ", as far as the model's positions go" if largest.tokens_bounded else ""
    return f"{rows:,} {noun} of {largest.row_tokens:,} tokens{bound}: train.max_length={largest.row_tokens}"


def _table(advice: PlannedAdvice) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("GiB", "", "step", "tokens/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("change", overflow="fold")
    table.add_row(*_figures(advice.before), Text("as it is"))
    for change in advice.changes:
        table.add_row(*_figures(change.after), _words(change))
    return table


def _figures(outcome: PlannedOutcome) -> list[str | Text]:
    rate = outcome.tokens_per_second
    return [
        Text(f"{outcome.needed_bytes / _GIB:.1f}", "green" if outcome.fits else "red"),
        "fits" if outcome.fits else "no",
        "n/a" if outcome.step_seconds is None else short_seconds(outcome.step_seconds),
        "n/a" if rate is None else f"{rate:,.0f}",
    ]


def _words(change: PlannedChange) -> Text:
    told = Text("\n".join(override_lines(change)))
    if not change.keeps_training:
        told.append("\nchanges what is learned", "yellow")
    told.append(f"\n+ {change.gives}\n- {change.costs}", "dim")
    return told


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
