"""Trees of the host's events, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from made_trace import event

from hf_efficient.trace.intervals import nest
from hf_efficient.trace.table import Kind

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
    assert names(events, found, found.chain(2)) == ["c", "b", "a"]


def test_self_times(tree):
    assert tree[1].self_times().tolist() == [50, 20, 10, 20, 10, 10]


def test_innermost(tree):
    events, found = tree
    asked = np.array([(1, 15), (1, 20), (1, 70), (1, 105), (1, 200), (2, 15), (2, 14), (9, 15)])
    thread = np.array([events.threads.index((100, one)) if one < 9 else 9 for one in asked[:, 0]])
    at = names(events, found, found.innermost(thread, asked[:, 1].astype(float)))
    assert at == ["c", "b", "a", "e", "", "f", "", ""]


def test_inherited(tree):
    _, found = tree
    assert found.inherited(np.array([7, -1, -1, 8, -1, -1])).tolist() == [7, 7, 7, 8, -1, -1]


def test_nodes(tree):
    events, found = tree
    assert names(events, found, found.nodes(found.rows[[4, 0]])) == ["e", "a"]


def test_a_child_that_outlasts_its_parent_takes_no_more_than_was_left(table_of):
    events = table_of([event("cpu_op", "a", 0, 10), event("cpu_op", "b", 8, 13)])
    assert nest(events, Kind.OPERATOR).self_times().tolist() == [8, 5]


def test_nothing(table_of):
    found = nest(table_of([]), Kind.OPERATOR)
    assert (len(found), found.self_times().tolist()) == (0, [])
