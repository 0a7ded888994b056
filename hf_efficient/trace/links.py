"""Which call of the runtime submitted what a device ran."""

from __future__ import annotations

import numpy as np

from hf_efficient.trace.kinds import Kind
from hf_efficient.trace.table import EventTable, Ints

__all__ = ["submitting_calls"]


def submitting_calls(events: EventTable, rows: Ints) -> Ints:
    """The row of the call with the same correlation, for each of these rows; -1 where the trace does not hold it.

    Where a correlation is used twice the later call before the work counts, or else the first: a call that launches a
    kernel through the driver has one event in each of the two interfaces.
    """
    calls = events.rows(Kind.CALL)
    calls = calls[events.correlation[calls] >= 0]
    if not len(calls):
        return np.full(len(rows), -1)
    calls = calls[np.argsort(events.correlation[calls], kind="stable")]
    keys = events.correlation[calls]
    wanted = events.correlation[rows]
    found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where((keys[found] == wanted) & (wanted >= 0), calls[found], -1)
