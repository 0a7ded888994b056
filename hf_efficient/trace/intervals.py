"""Arithmetic on intervals of time: arrays of starts and ends, ``start <= end``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hf_efficient.trace.table import Floats, Ints

__all__ = ["Gaps", "Spans", "clipped_length", "gaps", "overlap", "union"]


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
