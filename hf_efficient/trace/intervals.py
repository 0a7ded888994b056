"""Arithmetic on intervals of time: arrays of starts and ends, ``start <= end``.

What happened inside what, on the host's threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hf_efficient.trace.table import EventTable, Floats, Ints, Kind


@dataclass(frozen=True)
class Spans:
    """Intervals that neither overlap nor touch, ascending."""

    start: Floats
    end: Floats

    def __len__(self) -> int:
        return len(self.start)

    @property
    def length(self) -> float:
        """Of all of them together."""
        return float((self.end - self.start).sum())


@dataclass(frozen=True)
class Gaps:
    """The times between one span and the next.

    Attributes:
        start, end: of each gap.
        before: index, among the given intervals, of one that ends where the gap begins.
        after: index of the first one that starts where the gap ends.
    """

    start: Floats
    end: Floats
    before: Ints
    after: Ints

    def __len__(self) -> int:
        return len(self.start)

    @property
    def lengths(self) -> Floats:
        """Of each."""
        return self.end - self.start


def union(start: Floats, end: Floats) -> Spans:
    """The time that at least one interval covers.

    Hand-worked: [0, 4), [2, 6), [6, 7), [9, 10) give [0, 7), [9, 10): 8 long.

    Args:
        start: ascending.
        end: of the same intervals.
    """
    if not len(start):
        return Spans(start, end)
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate(([True], start[1:] > reach[:-1])))
    return Spans(start[first], reach[np.concatenate((first[1:] - 1, [len(start) - 1]))])


def gaps(start: Floats, end: Floats) -> Gaps:
    """Where no interval lies, between the first start and the last end.

    Args:
        start: ascending.
        end: of the same intervals.
    """
    reach = np.maximum.accumulate(end)
    after = np.flatnonzero(start[1:] > reach[:-1]) + 1
    farthest = np.maximum.accumulate(np.where(end >= reach, np.arange(len(end)), 0))
    return Gaps(reach[after - 1], start[after], farthest[after - 1], after)


def overlap(one: Spans, other: Spans) -> float:
    """How long both cover.

    Hand-worked: [0, 7), [9, 10) and [5, 9.5): 2 + 0.5 = 2.5.
    """
    return float(clipped_length(other, one.start, one.end).sum())


def clipped_length(spans: Spans, start: Floats, end: Floats) -> Floats:
    """How much of each window the spans cover; windows may overlap."""
    if not len(spans):
        return np.zeros(len(start))
    covered = np.concatenate(([0.0], np.cumsum(spans.end - spans.start)))
    return _covered_until(spans, covered, end) - _covered_until(spans, covered, start)


def _covered_until(spans: Spans, covered: Floats, moment: Floats) -> Floats:
    """The covered time before each moment."""
    index = np.searchsorted(spans.start, moment, side="right")
    last = np.maximum(index - 1, 0)
    into = np.clip(moment - spans.start[last], 0.0, spans.end[last] - spans.start[last])
    return np.where(index > 0, covered[last] + into, 0.0)


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
