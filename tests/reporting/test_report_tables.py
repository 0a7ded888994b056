"""The trace, the profile and the isolation of a run on a terminal and on its page."""

import dataclasses
import gzip
import json

import pytest
from page_reader import Page, printed
from sample_run import write_records
from sample_trace import TRACE

from hf_efficient.diagnosis.engine import diagnose_isolation
from hf_efficient.records import isolation as rec
from hf_efficient.records import profile as profile
from hf_efficient.reporting.finish_run import finish_run
from hf_efficient.reporting.html.run_page import run_page
from hf_efficient.reporting.profile_tables import found_tables, instrument_rows, profile_renderables, trace_renderables
from hf_efficient.reporting.run_data import RunTrace, read_run
from hf_efficient.reporting.trials import isolation_renderables


def has(lines, *cells):
    return any(line.split() == " ".join(cells).split() for line in lines)


def test_lines_and_tables():
    lines = printed(*trace_renderables(TRACE))
    assert max(map(len, lines)) <= 80
    (kernel,) = (line for line in lines if line.startswith("aaaa"))
    assert kernel.split("…")[1].split() == ["3.00", "s", "75.0%", "10", "300", "ms"]
    text = " ".join(lines)
    assert "1,200 kernels, 120 per second: p10 1.00 µs, p50 2.00 µs, p90 3.00 µs; 25% are shorter than 10.0 µs" in text
    assert "60 communication kernels run for 2.00 s: 25% of that beside computation, 1.50 s exposed (15% of" in text
    assert has(lines, "DtoD 1.00 ms 1 0 not known not known")


def test_without_a_device_the_operators_tell_by_family():
    steps = tuple(dataclasses.replace(step, busy_seconds=None) for step in TRACE.steps)
    lines = printed(*trace_renderables(dataclasses.replace(TRACE, devices=(), syncs=(), steps=steps)))
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
        "Device 0, NVIDIA Test GPU ",
        "computing 4.00 s 40.0 % only communicating 1.50 s 15.0 %",
        "total 10.0 s 100.0 %",
        "matmul 3.00 s 75.0 % 10 copy 1.00 s 25.0 % 4",
        f"{'a' * 90} (aten::mm) 3.00 s 75.0 % 10 300 ms",
        "HtoD, pageable 1.00 s 4 3 3.73 GiB 4.00GB/s",
        "loader.py(7): fetch 80% 750 ms 1.25 s 5 host",
        "200 of them were submitted by CUDA graphs",
        "60 communication kernels run for 2.00 s : 25 % of that beside computation, 1.50 s exposed",
        "train.py:12 (f), aten::item, cudaStreamSynchronize 20 1.50 s 500 ms",
        "aten::mm 2.00 s 100.0 % 3 2.50 s",
        f"hf-efficient trace 'out/my run/{NAME}'",
    ):
        assert told in page.said, told


def test_a_trace_beside_the_records_is_read(tmp_path):
    directory = write_records(tmp_path, steps=4)
    write_trace(directory)
    write_trace(directory, "trace.rank0.cycle1.pt.trace.json.gz")
    write_trace(directory, "trace.rank10.cycle0.pt.trace.json.gz")
    assert read_run(directory).trace is None  # nobody asked for it
    run = read_run(directory, trace=True)
    assert run.trace.name == f"profile/{NAME}"
    assert [step.number for step in run.trace.breakdown.steps] == [5]
    assert run.trace.others == [f"profile/trace.{one}.pt.trace.json.gz" for one in ("rank0.cycle1", "rank10.cycle0")]
    finish_run(directory)
    said = Page((directory / "report.html").read_text(encoding="utf-8")).said
    assert "2 more traces are beside it" in said
    assert "aten::mm 600 µs 100.0 % 1 600 µs" in said


@pytest.mark.parametrize("data", [b"", b"no trace at all", gzip.compress(b'{"a": 1}', mtime=0)[:-9]])
def test_what_is_no_trace_is_said(tmp_path, data):
    directory = write_records(tmp_path, steps=4)
    write_trace(directory).write_bytes(data)
    run = read_run(directory, trace=True)
    assert run.trace.breakdown is None
    assert f"profile/{NAME}: {directory}/profile/{NAME}" in Page(run_page(run)).said


MIB = 2**20
PLACE = "llama/modeling_llama.py:180 forward"
OPERATORS = profile.OperatorTable(
    0, 3, 0.2, 0.08, 0.1,
    [
        profile.OperatorTime("aten::mm", 36, 0.02, 0.075, 123_000_000, "[208, 64] [64, 128]"),
        profile.OperatorTime("aten::copy_", 4, 0.06, 0.025, 0, ""),
    ],
    7,
)  # fmt: skip
SNAPSHOT = profile.MemorySnapshot(
    moment="out of memory", reserved_bytes=100 * MIB, allocated_bytes=60 * MIB, inactive_split_bytes=24 * MIB,
    inactive_split_blocks=3, largest_free_bytes=16 * MIB, peak_bytes=80 * MIB,
    sites=[profile.AllocationSite(PLACE, ["a.py:1 f"], 60 * MIB, 2)],
    other_sites_bytes=20 * MIB, allocation_retries=4, failed_bytes=32 * MIB, device_free_bytes=8 * MIB,
    history_events=9,
    modules=[
        profile.ModuleAllocations("model.layers.*.mlp.down_proj", 60 * MIB, 8, 4, PLACE),
        profile.ModuleAllocations("outside the model's modules", 12 * MIB, 2, 0, "optim/adamw.py:9 step"),
    ],
    other_modules_bytes=8 * MIB,
)  # fmt: skip
PROFILE = profile.ProfileAccount(
    [
        profile.InstrumentAccount("trace", 1.5, 1.25, 3, ["profile/t"], "n"),
        profile.InstrumentAccount("nvtx", None, 0.0, 0),
    ],
    OPERATORS,
    [SNAPSHOT],
    [profile.FunctionTable("worker 0", "cprofile", 2.0, [profile.FunctionTime("c.py:3 collate", 1.5, 1.75, 40)], 1)],
    profile.LineTable([profile.FunctionLines("c.py:3 collate", 2.0, [profile.CodeLine(4, "    x = pad(x)", 40, 1.5)])]),
    profile.HostMemoryTable(200 * MIB, [profile.HostMemoryLine("d.py:9 load", "rows = read()", 50 * MIB, 3)]),
)


def test_each_table_holds_shares_of_its_own_whole():
    operators, snapshot, modules, functions, lines, memory = found_tables(PROFILE, 1)
    assert operators.headings == ["operator", "calls", "device", "share", "host", "FLOPs", "shapes"]
    assert operators.rows == [["aten::mm", "36", "75.0 ms", "75%", "20.0 ms", "123 M", "[208, 64] [64, 128]"]]
    assert operators.left_out == "8 rows with less time left out here."
    assert "kernels took 100 ms on the device, 50% of that" in operators.summary
    assert snapshot.rows == [[PLACE, "60.0 MiB", "75%", "2", "a.py:1 f"]]
    assert snapshot.left_out == "20.0 MiB of other lines are left out here."
    assert list(modules.headings) == ["module", "size", "share", "blocks", "most of it asked for by"]
    assert modules.rows == [["model.layers.*.mlp.down_proj", "60.0 MiB", "75%", "8", PLACE]]
    assert modules.summary == "out of memory: the 80.0 MiB at the peak by the modules that they are for"
    assert modules.left_out == "20.0 MiB of other modules are left out here."
    assert functions.rows == [["c.py:3 collate", "1.50 s", "75%", "1.75 s", "40"]]
    assert lines.rows == [["4", "1.50 s", "75%", "40", "    x = pad(x)"]]
    assert memory.rows == [["d.py:9 load", "50.0 MiB", "25%", "3", "rows = read()"]]


def test_what_an_instrument_cost():
    assert instrument_rows(PROFILE.instruments) == [
        ("trace", "cost 1.50 s over 3 steps (1.25 s of it in its own code): n; wrote profile/t"),
        ("nvtx", "did not run"),
    ]


def test_a_narrow_terminal_keeps_the_numbers():
    lines = printed(*profile_renderables(PROFILE), width=60)
    (line,) = (line for line in lines if line.startswith("aten::mm"))
    assert "75.0 ms" in line
    assert "123 M" in line
    assert "x = pad(x)" in "\n".join(lines)


SCHEDULE = rec.IsolationSchedule(1000, 10, 50, 100, 2, 4, 1, 0, 4.0, 2, "cpu")


@pytest.fixture
def lines() -> list[str]:
    parts = [
        rec.StepPart("forward", 0.5, None, None, 1, "forward"),
        rec.StepPart("data", 0.0, -0.01, 0.02, 2, "quiet less held_batches", "no difference"),
        rec.StepPart("backward_optimizer", 1.0, 0.9, 1.1, 2, "held_batches less forward"),
        rec.StepPart("evaluation", None, None, None, 0, "pauses", "the disk is full"),
    ]
    variants = [
        rec.VariantOutcome("as_is", "as it is", [rec.VariantMeasurement([0.9, 1.0, 1.1])] * 2),
        rec.VariantOutcome("micro_batch_doubled", "twice the rows", failure="out of device memory: " + "x" * 80),
        rec.VariantOutcome("one_process", "one process", left_out="the recipe trains in one process"),
    ]
    found = rec.Isolation(
        schema_version=1, hf_efficient_version="1", recipe="a-recipe", steps=12, warm_up=3, schedule=SCHEDULE,
        variants=variants, step_seconds=2.0, parts=parts, unexplained_seconds=0.5, tokens_per_second=1234.0,
        pauses=rec.PauseTimes(None, None, None), loader=rec.LoaderAlone(0.002, None, 1.5, 0.001),
        tokenisation=rec.TokenisationAlone(100, 5000, 2.0, 0.1, 50.0, 2500.0),
        micro_batch=rec.MicroBatchLine(0.05, 0.001, 0.25, 100.0, 30, ["as_is"]), forward_without_graph_seconds=0.4,
        price_usd_per_hour=None, notes=["a run also plans once, before its first step"],
    )  # fmt: skip
    return printed(*isolation_renderables(dataclasses.replace(found, diagnosis=diagnose_isolation(found))))


def test_lines_in_80_columns(lines):
    assert max(len(one) for one in lines) <= 80
    for told in (
        "An optimizer step of a-recipe: 2.00 s, 1,234 tokens/s with padding",
        "model forward 500 ms 25.0%",
        "data no difference -10.0 ms to 20.0 ms",
        "backward and optimizer 1.00 s 50.0% █████ 900 ms to 1.10 s",
        "evaluations not known",
        "evaluations: the disk is full",
        "unexplained 500 ms 25.0%",
        "total 2.00 s 100.0%",
        "the loader alone 2.00 ms for the batches of a step",
        "tokenisation alone 50 examples/s, 2,500 tokens/s",
        "a micro-batch 50.0 ms before it holds a token, 20% of its 250 ms",
        "as_is 2 1.00 s as it is",
        "micro_batch_doubled 0 failed: out of device memory",
        "one_process left out: the recipe trains in one process",
        "A run also plans once, before its first step.",
    ):
        assert any(" ".join(one.split()).startswith(told) for one in lines), told


def test_the_diagnosis_follows(lines):
    text = " ".join(" ".join(lines).split())
    assert "No cause is clear: 25% of a step is unexplained." in text
    assert "Nothing to fix" not in text
    assert "Not judged: evaluations_cost: evaluation: the disk is full" in text
