"""Breakdowns of hand-made traces."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_trace import EVENTS, write_trace

from hf_efficient.records.trace import TraceBreakdown
from hf_efficient.trace.breakdown import trace_breakdown
from hf_efficient.trace.read import EventTable, read_trace


@pytest.fixture
def broken_down(tmp_path: Path) -> Callable[..., TraceBreakdown]:
    """The breakdown of these events."""

    def build(events: list[Any] = EVENTS) -> TraceBreakdown:
        return trace_breakdown(write_trace(tmp_path / "trace.json", events))

    return build


@pytest.fixture
def table_of(tmp_path: Path) -> Callable[..., EventTable]:
    """These events as columns."""

    def build(events: list[Any]) -> EventTable:
        return read_trace(write_trace(tmp_path / "trace.json", events)).events

    return build
