"""Intervals, and trees of the host's events, by hand."""

import numpy as np
import pytest
from made_trace import event

from hf_efficient.trace.read import Kind
from hf_efficient.trace.timeline import clipped_length, gaps, nest, union


def spans(*pairs):
    start, end = (np.array(values, dtype=float) for values in zip(*pairs, strict=True))
    return union(start, end)


def test_union():
    found = spans((0, 4), (2, 6), (6, 7), (9, 10))
    assert (found.start.tolist(), found.end.tolist(), found.length) == ([0, 9], [7, 10], 8)
    found = spans((0, 10), (1, 2), (3, 4), (10, 11), (12, 12))
    assert (found.start.tolist(), found.end.tolist()) == ([0, 12], [11, 12])


def test_gaps_know_their_neighbours():
    found = gaps(np.array([0.0, 1.0, 3.0, 9.0, 20.0]), np.array([5.0, 2.0, 4.0, 12.0, 21.0]))
    assert (found.start.tolist(), found.end.tolist()) == ([5, 12], [9, 20])
    assert (found.before.tolist(), found.after.tolist()) == ([0, 3], [3, 4])
    assert found.lengths.tolist() == [4, 8]


def test_clipped_length():
    windows = np.array([0.0, 3.0, 8.0, 20.0]), np.array([8.0, 6.0, 9.5, 30.0])
    # [0, 7) and [9, 10) in [0, 8), [3, 6), [8, 9.5), [20, 30)
    assert clipped_length(spans((0, 7), (9, 10)), *windows).tolist() == [7, 3, 0.5, 0]


# Thread 1: a 0-100 holds b 10-40 (which holds c 10-20) and d 40-60; e 100-110. Thread 2: f 15-25.
EVENTS = [
    event("cpu_op", "a", 0, 100),
    event("cpu_op", "b", 10, 40),
    event("cpu_op", "c", 10, 20),
    event("cpu_op", "d", 40, 60),
    event("cpu_op", "e", 100, 110),
    event("cpu_op", "f", 15, 25, tid=2),
]


@pytest.fixture
def tree(table_of):
    events = table_of(EVENTS)
    return events, nest(events, Kind.OPERATOR)


def names(events, tree, nodes):
    return ["" if node < 0 else events.names[events.name[tree.rows[node]]] for node in nodes]


def test_parents(tree):
    events, found = tree
    assert names(events, found, range(6)) == ["a", "b", "c", "d", "e", "f"]
    assert names(events, found, found.parent) == ["", "a", "b", "a", "", ""]
    assert [events.names[events.name[row]] for row in found.chain(2)] == ["c", "b", "a"]


def test_self_times_and_what_is_inherited(tree):
    assert tree[1].self_times().tolist() == [50, 20, 10, 20, 10, 10]
    assert tree[1].inherited(np.array([7, -1, -1, 8, -1, -1])).tolist() == [7, 7, 7, 8, -1, -1]


def test_a_child_that_outlasts_its_parent_takes_no_more_than_was_left(table_of):
    events = table_of([event("cpu_op", "a", 0, 10), event("cpu_op", "b", 8, 13)])
    assert nest(events, Kind.OPERATOR).self_times().tolist() == [8, 5]
