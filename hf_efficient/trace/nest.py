"""What happened inside what, on the host's threads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hf_efficient.trace.kinds import Kind
from hf_efficient.trace.table import EventTable, Floats, Ints

__all__ = ["Nest", "nest"]

_ROUNDING = 1e-3  # microseconds: what ends a nanosecond after the next one begins has ended


@dataclass(frozen=True)
class Nest:
    """The chosen events of the host as trees: one node per event, thread by thread, parents before children.

    Attributes:
        rows: of the events in the table.
        parent: the node around each; -1: none.
        start, end: microseconds.
        thread: of each.
    """

    rows: Ints
    parent: Ints
    start: Floats
    end: Floats
    thread: Ints

    def __len__(self) -> int:
        return len(self.rows)

    def nodes(self, rows: Ints) -> Ints:
        """The nodes of these rows of the table; all of them must be in the nest."""
        return self._node_of_row[rows]

    @cached_property
    def _node_of_row(self) -> Ints:
        found = np.full(int(self.rows.max(initial=-1)) + 1, -1)
        found[self.rows] = np.arange(len(self.rows))
        return found

    def innermost(self, thread: Ints, moment: Floats) -> Ints:
        """The innermost node around each moment on each thread; -1 where there is none."""
        found = np.full(len(moment), -1)
        for one in np.unique(thread).tolist():
            asked = thread == one
            first, last = np.searchsorted(self.thread, one), np.searchsorted(self.thread, one, side="right")
            node = np.searchsorted(self.start[first:last], moment[asked], side="right") - 1
            found[asked] = np.where(node >= 0, node + first, -1)
        while (over := (found >= 0) & (self.end[found] <= moment)).any():
            found[over] = self.parent[found[over]]
        return found

    def inherited(self, own: Ints) -> Ints:
        """Of each node its own value, or that of the nearest node around it that has one.

        Args:
            own: a value of each node; -1: none.
        """
        value, ancestor = own.copy(), self.parent.copy()
        open_nodes = np.flatnonzero((value < 0) & (ancestor >= 0))
        while len(open_nodes):
            above = ancestor[open_nodes]
            value[open_nodes], ancestor[open_nodes] = own[above], self.parent[above]
            open_nodes = open_nodes[(value[open_nodes] < 0) & (ancestor[open_nodes] >= 0)]
        return value

    def self_times(self) -> Floats:
        """The time of each node without its children, in microseconds."""
        length = self.end - self.start
        inside = self.parent >= 0
        around = self.parent[inside]
        # An event that outlasts the one around it (rounding, a thread that is switched) takes no more than was left.
        shared = np.minimum(self.end[inside], self.end[around]) - self.start[inside]
        children = np.zeros(len(length))
        np.add.at(children, around, shared)
        return np.maximum(length - children, 0.0)

    def chain(self, node: int) -> list[int]:
        """The node and those around it, the innermost first."""
        found = []
        while node >= 0:
            found.append(node)
            node = int(self.parent[node])
        return found


def nest(events: EventTable, *kinds: Kind) -> Nest:
    """The trees of all events of these kinds."""
    rows = events.rows(*kinds)
    rows = rows[np.argsort(events.thread[rows], kind="stable")]
    start, end, thread = events.start[rows], events.end[rows], events.thread[rows].astype(np.int64)
    return Nest(rows, _parents(start, end, thread), start, end, thread)


def _parents(start: Floats, end: Floats, thread: Ints) -> Ints:
    found = []
    around: list[tuple[float, int]] = []
    last = None
    for node, (begins, ends, on) in enumerate(zip(start.tolist(), end.tolist(), thread.tolist(), strict=True)):
        if on != last:
            around, last = [], on
        while around and around[-1][0] <= begins + _ROUNDING:
            around.pop()
        found.append(around[-1][1] if around else -1)
        around.append((ends, node))
    return np.array(found, dtype=np.int64)
