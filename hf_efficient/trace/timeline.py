"""Intervals in time, and intervals inside intervals: arithmetic on arrays of starts and ends, all in microseconds."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hf_efficient.trace.read import EventTable, Floats, Ints, Kind

_ROUNDING = 1e-3  # microseconds: what ends a nanosecond after the next one begins has ended


@dataclass(frozen=True)
class Spans:
    """Intervals that neither overlap nor touch, ascending."""

    start: Floats
    end: Floats

    @property
    def length(self) -> float:
        return float((self.end - self.start).sum())


@dataclass(frozen=True)
class Gaps:
    """The times between one span and the next, with an interval that ends and the first that starts there."""

    start: Floats
    end: Floats
    before: Ints
    after: Ints

    @property
    def lengths(self) -> Floats:
        return self.end - self.start


def union(start: Floats, end: Floats) -> Spans:
    """The time that at least one interval covers; ``start`` ascends. Hand-worked: [0, 4), [2, 6), [6, 7), [9, 10) give
    [0, 7), [9, 10): 8 long."""
    if not len(start):
        return Spans(start, end)
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate(([True], start[1:] > reach[:-1])))
    return Spans(start[first], reach[np.concatenate((first[1:] - 1, [len(start) - 1]))])


def gaps(start: Floats, end: Floats) -> Gaps:
    """Where no interval lies, between the first start and the last end; ``start`` ascends."""
    reach = np.maximum.accumulate(end)
    after = np.flatnonzero(start[1:] > reach[:-1]) + 1
    farthest = np.maximum.accumulate(np.where(end >= reach, np.arange(len(end)), 0))
    return Gaps(reach[after - 1], start[after], farthest[after - 1], after)


def clipped_length(spans: Spans, start: Floats, end: Floats) -> Floats:
    """How much of each window the spans cover; windows may overlap."""
    if not len(spans.start):
        return np.zeros(len(start))
    lengths = spans.end - spans.start
    covered = np.cumsum(lengths)
    moments = np.stack((spans.start, spans.end), axis=1).ravel()
    levels = np.stack((covered - lengths, covered), axis=1).ravel()
    return np.interp(end, moments, levels) - np.interp(start, moments, levels)


@dataclass(frozen=True)
class Nest:
    """The chosen events of the host as trees, thread by thread, parents (-1: none) before children."""

    rows: Ints
    parent: Ints
    start: Floats
    end: Floats
    thread: Ints

    @cached_property
    def node_of_row(self) -> Ints:
        """Of each row of the table; -1, or beyond its end: it is not in the nest."""
        found = np.full(int(self.rows.max(initial=-1)) + 1, -1)
        found[self.rows] = np.arange(len(self.rows))
        return found

    def inherited(self, own: Ints) -> Ints:
        """Of each node its own value, or that of the nearest node around it that has one; -1: none."""
        value, ancestor = own.copy(), self.parent.copy()
        open_nodes = np.flatnonzero((value < 0) & (ancestor >= 0))
        while len(open_nodes):
            above = ancestor[open_nodes]
            value[open_nodes], ancestor[open_nodes] = own[above], self.parent[above]
            open_nodes = open_nodes[(value[open_nodes] < 0) & (ancestor[open_nodes] >= 0)]
        return value

    def self_times(self) -> Floats:
        length = self.end - self.start
        inside = self.parent >= 0
        around = self.parent[inside]
        # An event that outlasts the one around it (rounding, a thread that is switched) takes no more than was left.
        shared = np.minimum(self.end[inside], self.end[around]) - self.start[inside]
        children = np.zeros(len(length))
        np.add.at(children, around, shared)
        return np.maximum(length - children, 0.0)

    def chain(self, row: int) -> Ints:
        """The rows of an event and of those around it, the innermost first."""
        nodes = [int(self.node_of_row[row])]
        while (around := int(self.parent[nodes[-1]])) >= 0:
            nodes.append(around)
        return self.rows[nodes]


def nest(events: EventTable, *kinds: Kind) -> Nest:
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
