"""Intervals, by hand."""

from __future__ import annotations

import numpy as np

from hf_efficient.trace.intervals import clipped_length, gaps, overlap, union


def spans(*pairs):
    start, end = (np.array(values, dtype=float) for values in zip(*pairs, strict=True))
    return union(start, end)


def test_union():
    found = spans((0, 4), (2, 6), (6, 7), (9, 10))
    assert (found.start.tolist(), found.end.tolist(), found.length) == ([0, 9], [7, 10], 8)


def test_union_of_one_inside_another():
    found = spans((0, 10), (1, 2), (3, 4), (10, 11), (12, 12))
    assert (found.start.tolist(), found.end.tolist()) == ([0, 12], [11, 12])


def test_union_of_nothing():
    assert union(np.empty(0), np.empty(0)).length == 0.0


def test_gaps_know_their_neighbours():
    found = gaps(np.array([0.0, 1.0, 3.0, 9.0, 20.0]), np.array([5.0, 2.0, 4.0, 12.0, 21.0]))
    assert (found.start.tolist(), found.end.tolist()) == ([5, 12], [9, 20])
    assert (found.before.tolist(), found.after.tolist()) == ([0, 3], [3, 4])
    assert found.lengths.tolist() == [4, 8]


def test_overlap():
    assert overlap(spans((0, 7), (9, 10)), spans((5, 9.5))) == 2.5
    assert overlap(spans((0, 1), (2, 3)), spans((1, 2))) == 0.0
    assert overlap(spans((0, 1)), union(np.empty(0), np.empty(0))) == 0.0


def test_clipped_length():
    windows = np.array([0.0, 3.0, 8.0, 20.0]), np.array([8.0, 6.0, 9.5, 30.0])
    # [0, 7) and [9, 10) in [0, 8), [3, 6), [8, 9.5), [20, 30)
    assert clipped_length(spans((0, 7), (9, 10)), *windows).tolist() == [7, 3, 0.5, 0]
