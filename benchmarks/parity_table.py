"""Losses of a strategy against those of one process, and the table of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.table import Table

__all__ = ["TOLERANCES", "Parity", "compared", "parity_table"]

TOLERANCES = {"fp32": 1e-5, "bf16": 1e-2}
"""Relative; what a loss may differ by from that of one process."""


class Parity(NamedTuple):
    """One training.

    Attributes:
        strategy, method, precision: of it.
        worst: relative difference of a step's loss, the largest.
        last: loss of the last step.
        holds: whether every step's difference is within the tolerance of the precision.
    """

    strategy: str
    method: str
    precision: str
    worst: float
    last: float
    holds: bool


def compared(
    strategy: str, losses: Mapping[str, Sequence[float]], reference: Mapping[str, Sequence[float]]
) -> list[Parity]:
    """A row for each training, named ``METHOD-PRECISION``.

    Raises:
        ValueError: a training has another number of steps than that of the reference.
    """
    rows = []
    for name, series in losses.items():
        method, precision = name.split("-")
        pairs = zip(series, reference[name], strict=True)
        worst = max(abs(one - other) / abs(other) for one, other in pairs)
        rows.append(Parity(strategy, method, precision, worst, series[-1], worst <= TOLERANCES[precision]))
    return rows


def parity_table(rows: Sequence[Parity], steps: int) -> Table:
    """For the terminal."""
    table = Table(title=f"Largest relative difference of a step's loss from one process's, {steps} steps")
    table.add_column("strategy")
    for name in ("method", "precision"):
        table.add_column(name)
    for name in ("difference", "last loss", "within"):
        table.add_column(name, justify="right")
    for row in rows:
        within = f"{TOLERANCES[row.precision]:g}" if row.holds else f"NOT {TOLERANCES[row.precision]:g}"
        table.add_row(row.strategy, row.method, row.precision, f"{row.worst:.2e}", f"{row.last:.4f}", within)
    return table
