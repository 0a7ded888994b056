"""What the Trainer logged of rank 0: losses and learning rates, in the order logged."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hf_efficient.diagnosis.case import Case

__all__ = ["is_flat", "logged", "noise_of", "window_medians"]

_WINDOWS = 10
Column = npt.NDArray[np.float64]


def logged(case: Case, name: str) -> Column:
    """The finite values of a column in the last stretch of training, shape (logs,); empty where nothing was logged.

    A ``train()`` call that begins at the first step is another training, with data or a learning rate of its own; one
    that goes on where the last one ended is not.

    Args:
        case: the run.
        name: ``loss``, ``learning_rate`` or ``grad_norm``.
    """
    first = case.first
    if first is None:
        return np.empty(0)
    anew = np.flatnonzero((np.diff(first.segment) != 0) & (first.step[1:] == 1))
    column: Column = getattr(first, name)[int(anew[-1]) + 1 if len(anew) else 0 :]
    return column[np.isfinite(column)]


def window_medians(values: Column) -> Column:
    """Medians of ten consecutive windows, or of as many as there are values."""
    return np.array([np.median(part) for part in np.array_split(values, min(_WINDOWS, len(values)))])


def noise_of(values: Column) -> float:
    """Median distance between neighbours: what a log differs by without a trend; at least 2 values."""
    return float(np.median(np.abs(np.diff(values))))


def is_flat(values: Column, share: float) -> bool:
    """Whether the last third differs from the first by less than a share of it.

    Args:
        values: at least three.
        share: of the first third's median.
    """
    third = max(1, len(values) // 3)
    before, after = float(np.median(values[:third])), float(np.median(values[-third:]))
    return abs(after - before) < share * abs(before)
