"""The breakdown of a trace on a terminal, from records made by hand."""

from __future__ import annotations

import dataclasses

import pytest
from rich.console import Console
from sample_trace import TRACE

from hf_efficient.records.trace import TraceStep
from hf_efficient.reporting.trace_tables import trace_renderables


def printed(trace, width=80):
    console = Console(width=width, highlight=False, color_system=None)
    with console.capture() as captured:
        for part in trace_renderables(trace):
            console.print(part)
    return [line.rstrip() for line in captured.get().splitlines()]


def has(lines, *cells):
    return any(line.split() == " ".join(cells).split() for line in lines)


def test_the_title_and_the_remarks():
    lines = printed(TRACE)
    title = "run/trace.json.gz: 12,345 events in 2.0 MiB, 12.0 s long, rank 1 of 2, steps 5 to 6"
    assert " ".join(lines[:2]) == title
    assert lines[2] == "Mind this."


def test_each_second_of_a_device_is_in_one_row():
    lines = printed(TRACE)
    start = next(index for index, line in enumerate(lines) if line.startswith("device 0, NVIDIA Test GPU"))
    rows = [line.replace("█", "").split() for line in lines[start + 1 : start + 8]]
    assert rows == [
        ["computing", "4.00", "s", "40.0%"],
        ["only", "communicating", "1.50", "s", "15.0%"],
        ["only", "copying", "or", "setting", "memory", "500", "ms", "5.0%"],
        ["idle,", "host-bound", "2.50", "s", "25.0%"],
        ["idle,", "launch-bound", "1.00", "s", "10.0%"],
        ["idle,", "other", "500", "ms", "5.0%"],
        ["in", "all", "10.0", "s", "100.0%"],
    ]


def test_figures_stay_whole_in_80_columns():
    lines = printed(TRACE)
    assert max(map(len, lines)) <= 80
    (kernel,) = (line for line in lines if line.startswith("aaaa"))
    assert kernel.split("…")[1].split() == ["3.00", "s", "75.0%", "10", "300", "ms"]


def test_lines_and_tables():
    lines = printed(TRACE)
    text = " ".join(lines)
    assert "1,200 kernels, 120 per second: p10 1.00 µs, p50 2.00 µs, p90 3.00 µs; 25% are shorter than 10.0 µs" in text
    assert "200 of them were submitted by CUDA graphs" in text
    assert "60 communication kernels run for 2.00 s: 25% of that beside computation, 1.50 s exposed (15% of" in text
    assert has(lines, "HtoD, pageable", "1.00 s", "4", "3", "3.73 GiB", "4.00GB/s")
    assert has(lines, "DtoD", "1.00 ms", "1", "0", "not told", "not told")
    assert has(lines, "loader.py(7): fetch 80%", "750 ms", "1.25 s", "5", "host")
    assert has(lines, "not told", "500 ms", "2.00 s", "other")
    assert has(lines, "train.py:12 (f), aten::item, cudaStreamSynchronize", "20", "1.50 s", "500 ms")
    assert has(lines, "5", "8.00 s", "50.0%", "20", "1.50 s")
    assert has(lines, "aten::mm", "2.00 s", "100.0%", "3", "2.50 s")


def test_without_a_device_the_operators_tell_by_family():
    steps = tuple(dataclasses.replace(step, busy_seconds=None) for step in TRACE.steps)
    lines = printed(dataclasses.replace(TRACE, devices=(), syncs=(), steps=steps))
    assert any(line.startswith("operators by family") for line in lines)
    assert has(lines, "5", "8.00 s")
    assert not any("busy" in line for line in lines)


def test_of_many_steps_the_longest_are_shown_in_order():
    steps = tuple(TraceStep(number, number * 1.0, 1.0 + number % 3, 0.5, 0, 0.0) for number in range(12))
    lines = printed(dataclasses.replace(TRACE, devices=(), host=None, syncs=(), steps=steps))
    start = next(index for index, line in enumerate(lines) if line.startswith("the longest 8 of 12 steps"))
    assert [line.split()[0] for line in lines[start + 1 :]] == ["1", "2", "4", "5", "7", "8", "10", "11"]


@pytest.mark.parametrize("width", [80, 40])
def test_a_trace_of_nothing(width):
    empty = dataclasses.replace(TRACE, devices=(), host=None, syncs=(), steps=(), remarks=())
    assert " ".join(printed(empty, width)).startswith("run/trace.json.gz: 12,345 events")
