"""Dynamo's counters, as hand-made modules hold them."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from types import SimpleNamespace

import pytest

from hf_efficient.recording.compilation import compile_counts


@pytest.fixture
def dynamo(monkeypatch):
    frames = SimpleNamespace(FRAME_COMPILE_COUNTER=Counter())
    utilities = SimpleNamespace(counters=defaultdict(Counter))
    monkeypatch.setitem(sys.modules, "torch._dynamo.convert_frame", frames)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utilities)
    return frames, utilities


def test_nothing_was_compiled(dynamo):
    assert compile_counts() is None


def test_recompilations_and_breaks(dynamo):
    frames, utilities = dynamo
    frames.FRAME_COMPILE_COUNTER.update({0: 3, 1: 1})
    utilities.counters["stats"]["unique_graphs"] = 4
    utilities.counters["graph_break"].update({"a call of print\n  Explanation: ...": 1, "\ndata-dependent jump": 2})
    assert compile_counts() == {
        "frames": 2,
        "recompiles": 2,
        "graphs": 4,
        "graph_breaks": 3,
        "break_reasons": {"data-dependent jump": 2, "a call of print": 1},
    }
