"""The trace of a run on a terminal and on its page."""

from __future__ import annotations

import dataclasses
import gzip
import json

import pytest
from page_reader import Page
from rich.console import Console
from sample_run import write_records
from sample_trace import DEVICE, TRACE

from hf_efficient.reporting.finish_run import finish_run
from hf_efficient.reporting.html.run_page import run_page
from hf_efficient.reporting.plots.time import device_time_bar, family_bar
from hf_efficient.reporting.run_data import RunTrace, read_run
from hf_efficient.reporting.trace_tables import trace_renderables


def printed(trace, width=80):
    console = Console(width=width, highlight=False, color_system=None)
    with console.capture() as captured:
        for part in trace_renderables(trace):
            console.print(part)
    return [line.rstrip() for line in captured.get().splitlines()]


def has(lines, *cells):
    return any(line.split() == " ".join(cells).split() for line in lines)


def test_lines_and_tables():
    lines = printed(TRACE)
    assert max(map(len, lines)) <= 80
    (kernel,) = (line for line in lines if line.startswith("aaaa"))
    assert kernel.split("…")[1].split() == ["3.00", "s", "75.0%", "10", "300", "ms"]
    text = " ".join(lines)
    assert "1,200 kernels, 120 per second: p10 1.00 µs, p50 2.00 µs, p90 3.00 µs; 25% are shorter than 10.0 µs" in text
    assert "60 communication kernels run for 2.00 s: 25% of that beside computation, 1.50 s exposed (15% of" in text
    for cells in (
        "HtoD, pageable 1.00 s 4 3 3.73 GiB 4.00GB/s",
        "DtoD 1.00 ms 1 0 not told not told",
        "not told 500 ms 2.00 s other",
        "5 8.00 s 50.0% 20 1.50 s",
    ):
        assert has(lines, cells), cells


def test_without_a_device_the_operators_tell_by_family():
    steps = tuple(dataclasses.replace(step, busy_seconds=None) for step in TRACE.steps)
    lines = printed(dataclasses.replace(TRACE, devices=(), syncs=(), steps=steps))
    assert any(line.startswith("operators by family") for line in lines)
    assert has(lines, "5", "8.00 s")
    assert not any("busy" in line for line in lines)


NAME = "trace.rank0.cycle0.pt.trace.json.gz"
STEP = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#5", "pid": 1, "tid": 1, "ts": 0, "dur": 1000}
MM = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 100, "dur": 600}


def traced(run, breakdown=TRACE, **parts):
    plain = {"name": f"profile/{NAME}", "path": f"out/my run/{NAME}", "why": "", "others": []}
    return dataclasses.replace(run, trace=RunTrace(breakdown=breakdown, **{**plain, **parts}))


def write_trace(directory, name=NAME, events=(STEP, MM)):
    path = directory / "profile" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": list(events)}).encode()))
    return path


def test_a_device_is_told_by_cause_family_kernel_copy_and_gap(full_run):
    page = Page(run_page(traced(full_run)))
    for told in (
        f"profile/{NAME}: 12,345 events in 2.0 MiB, 12.0 s long, rank 1 of 2, steps 5 to 6",
        "Mind: Mind this.",
        "Device 0, NVIDIA Test GPU Device time The device ran something for 60% of 10.0 s",
        "computing 4.00 s 40.0 % only communicating 1.50 s 15.0 %",
        "in all 10.0 s 100.0 %",
        "matmul 3.00 s 75.0 % 10 copy 1.00 s 25.0 % 4",
        f"{'a' * 90} (aten::mm) 3.00 s 75.0 % 10 300 ms",
        "HtoD, pageable 1.00 s 4 3 3.73 GiB 4.00GB/s",
        "loader.py(7): fetch 80% 750 ms 1.25 s 5 host",
        "200 of them were submitted by CUDA graphs",
        "60 communication kernels run for 2.00 s : 25 % of that beside computation, 1.50 s exposed",
        "train.py:12 (f), aten::item, cudaStreamSynchronize 20 1.50 s 500 ms",
        "aten::mm 2.00 s 100.0 % 3 2.50 s",
        f"hf-efficient diagnose 'out/my run/{NAME}'",
    ):
        assert told in page.said, told
    assert [name for name in page.ids("figure") if name.startswith("trace")] == ["trace-device-0", "trace-families-0"]
    assert "trace-families-host" not in page.data["figures"]


def test_bars_are_as_long_as_their_seconds():
    figure = device_time_bar(DEVICE)
    assert {trace["name"]: trace["x"] for trace in figure.traces} == {
        "computing": [4.0], "only communicating": [1.5], "only copying or setting memory": [0.5],
        "idle, host-bound": [2.5], "idle, launch-bound": [1.0], "idle, other": [0.5],
    }  # fmt: skip
    assert figure.layout["xaxis"]["range"] == [0, 10.0]
    assert figure.summary == "The device ran something for 60% of 10.0 s; idle, host-bound for 2.50 s."
    short = [dataclasses.replace(one, seconds=one.seconds / 10) for one in DEVICE.families]
    families = family_bar(short, "a-bar", "Families")
    assert [trace["x"] for trace in families.traces] == [[300.0], [100.0]]  # milliseconds
    assert families.layout["xaxis"]["title"]["text"] == "ms"


def test_a_trace_beside_the_records_is_read(tmp_path):
    directory = write_records(tmp_path, steps=4)
    write_trace(directory)
    write_trace(directory, "trace.rank0.cycle1.pt.trace.json.gz")
    write_trace(directory, "trace.rank10.cycle0.pt.trace.json.gz")
    assert read_run(directory).trace is None  # nobody asked for it
    run = read_run(directory, trace=True)
    assert run.trace.name == f"profile/{NAME}"
    assert [step.number for step in run.trace.breakdown.steps] == [5]
    assert run.trace.others == [
        "profile/trace.rank0.cycle1.pt.trace.json.gz",
        "profile/trace.rank10.cycle0.pt.trace.json.gz",
    ]
    finish_run(directory)
    said = Page((directory / "report.html").read_text(encoding="utf-8")).said
    assert "2 more traces lie beside it" in said
    assert "aten::mm 600 µs 100.0 % 1 600 µs" in said


@pytest.mark.parametrize("data", [b"", b"no trace at all", gzip.compress(b'{"a": 1}', mtime=0)[:-9]])
def test_what_is_no_trace_is_said(tmp_path, data):
    directory = write_records(tmp_path, steps=4)
    write_trace(directory).write_bytes(data)
    run = read_run(directory, trace=True)
    assert run.trace.breakdown is None
    assert f"profile/{NAME}: {directory}/profile/{NAME}" in Page(run_page(run)).said
