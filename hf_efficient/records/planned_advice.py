"""What a plan would change: batches, changes of the recipe, and the largest of what still fits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["PlannedAdvice", "PlannedBatching", "PlannedChange", "PlannedLargest", "PlannedOutcome"]


@dataclass(frozen=True)
class PlannedBatching:
    """The run's examples as batches of one kind, at the recipe's micro-batch.

    Attributes:
        name: of the kind.
        overrides: values of the recipe by dotted key that make it so.
        chosen: whether the recipe does.
        epoch_positions: places of an epoch's batches, padding included.
        padding_share: of them, padding.
        epoch_steps: optimizer steps.
    """

    name: str
    overrides: dict[str, Any]
    chosen: bool
    epoch_positions: int
    padding_share: float
    epoch_steps: int


@dataclass(frozen=True)
class PlannedOutcome:
    """What a recipe comes to on one accelerator.

    Attributes:
        needed_bytes: reserved by torch's allocator, and the CUDA context.
        fits: whether the training runs without being out of memory.
        step_seconds: an optimizer step; None where a rate of the device is not known.
        tokens_per_second: of the rows, padding included.
    """

    needed_bytes: int
    fits: bool
    step_seconds: float | None
    tokens_per_second: float | None


@dataclass(frozen=True)
class PlannedChange:
    """A change of the recipe, or several together, and what it comes to.

    Attributes:
        overrides: values of the recipe by dotted key.
        gives: what it is good for, in words.
        costs: what it costs, in words.
        keeps_training: whether the same weights learn from the same tokens; rounding may differ.
        before: the recipe as it is.
        after: with the change; rehearsed, as the recipe itself.
    """

    overrides: dict[str, Any]
    gives: str
    costs: str
    keeps_training: bool
    before: PlannedOutcome
    after: PlannedOutcome


@dataclass(frozen=True)
class PlannedAdvice:
    """What to change in a recipe for one accelerator.

    Attributes:
        accelerator: its name.
        memory_bytes: that its vendor states.
        usable_memory_bytes: of it, what torch reports as its total.
        before: the recipe as it is.
        changes: those that fit first; of these first those that keep the training, the fastest per token first, and
            the one that saves the most memory first among equals.
        left_out: what was not tried, and why.
    """

    accelerator: str
    memory_bytes: int
    usable_memory_bytes: int
    before: PlannedOutcome
    changes: list[PlannedChange]
    left_out: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PlannedLargest:
    """The most that fits on one accelerator.

    Attributes:
        accelerator: its name.
        micro_batch_rows: with rows as long as the recipe's, pairs of ``method: dpo``; 0 where not even one row fits.
        row_tokens: with as many rows as the recipe's; a multiple of ``row_tokens_step``, 0 where not even that fits.
        row_tokens_step: how finely the length was searched.
        rows_bounded: whether the search for rows ended at its own limit, so that more may fit.
        tokens_bounded: whether the length ended at the positions that the model was made for.
    """

    accelerator: str
    micro_batch_rows: int
    row_tokens: int
    row_tokens_step: int
    rows_bounded: bool = False
    tokens_bounded: bool = False
