"""The step records of one rank as columns."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hf_efficient.account.line_reader import LineReader
from hf_efficient.account.step_lines import StepLine
from hf_efficient.account.tail import Block
from hf_efficient.diagnosis.case import Column, StepColumns
from hf_efficient.errors import OutputError

__all__ = ["columns_of", "read_columns"]

_MOST_BYTES = 16 << 20
"""About 20,000 steps: of a longer run the last ones of each rank, so that a diagnosis takes seconds."""


class ColumnLine(StepLine, gc=False, kw_only=True):
    """What the columns need of a step record."""

    micro_batches: int = 1
    cpu_seconds: float | None = None


def read_columns(path: Path) -> StepColumns:
    """The last steps of a file; half-written and broken lines are left out and logged.

    Raises:
        OutputError: the file cannot be read, or was written by a newer version.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _MOST_BYTES))
            text = file.read()
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror or error}") from error
    if size > _MOST_BYTES:
        text = text[text.find(b"\n") + 1 :]
    whole, _, _half = text.rpartition(b"\n")
    if not whole:
        return columns_of([])
    block = Block(path, 1, whole.count(b"\n") + 1, whole + b"\n")
    return columns_of(_reader().read(block)[0])


@functools.cache
def _reader() -> LineReader[ColumnLine]:
    return LineReader(ColumnLine, "step record")


def columns_of(lines: Sequence[ColumnLine]) -> StepColumns:
    """A row per line."""
    sequences = [line.sequences for line in lines]
    memory = [line.memory for line in lines]
    loading = [line.loader for line in lines]
    return StepColumns(
        segment=_column(line.segment for line in lines),
        step=_column(line.step for line in lines),
        wall_seconds=_column(line.wall_seconds for line in lines),
        phase_seconds=_table([line.phase_seconds for line in lines], 0.0),
        device_seconds=_table([line.device_seconds for line in lines], 0.0),
        micro_batches=_column(line.micro_batches for line in lines),
        rows=_column(None if part is None else part.rows for part in sequences),
        processed=_column(line.tokens.processed for line in lines),
        non_padding=_column(line.tokens.non_padding for line in lines),
        loss_bearing=_column(line.tokens.loss_bearing for line in lines),
        loader=_table([None if part is None else msgspec.structs.asdict(part) for part in loading], float("nan")),
        cpu_seconds=_column(line.cpu_seconds for line in lines),
        loss=_column(line.loss for line in lines),
        learning_rate=_column(line.learning_rate for line in lines),
        grad_norm=_column(line.grad_norm for line in lines),
        peak_allocated_bytes=_column(None if part is None else part.peak_allocated_bytes for part in memory),
        peak_reserved_bytes=_column(None if part is None else part.peak_reserved_bytes for part in memory),
        allocation_retries=_column(None if part is None else part.allocation_retries for part in memory),
        waited_seconds=_table([line.waited_seconds for line in lines], 0.0),
    )


def _column(values: Iterable[float | int | str | None]) -> Column:
    return np.array([float("nan") if value is None else float(value) for value in values], dtype=np.float64)


def _table(parts: Sequence[Mapping[str, Any] | None], absent: float) -> dict[str, Column]:
    """A column for every name under which any part holds a number; a row without the part is NaN."""
    held = [part for part in parts if part is not None]
    names = dict.fromkeys(name for part in held for name, value in part.items() if isinstance(value, (int, float)))

    def of(name: str) -> Column:
        return _column(None if part is None else part.get(name, absent) for part in parts)

    return {name: of(name) for name in names}
