"""The data loader's times of hand-made steps, added up."""

from __future__ import annotations

import json
from dataclasses import asdict

import msgspec
from test_account_build import end, lines, process, span, step, train

from hf_efficient.accounting.account import account_of, read_run
from hf_efficient.accounting.steps import LOADER_SECONDS
from hf_efficient.records.amounts import LoaderAccount
from hf_efficient.records.steps import StepLoader, StepRecord


def run(folder, *steps, facts=None):
    told = {"kind": "facts", "process": 0, "facts": {"loader": facts or {}}}
    lines(folder / "spans.jsonl", process(), span(0.0, imports=1.0), train(0, 1.0), told, end(9.0))
    lines(folder / "steps.jsonl", *steps)
    return folder


def loaded(number, at, **part):
    return {**step(number, at, 1.0), "loader": msgspec.to_builtins(StepLoader(**part))}


def test_a_loader_with_workers_by_hand(tmp_path):
    first = {"batches": 2, "wait_seconds": 1.5, "first_wait_seconds": 1.25, "start_seconds": 0.5, "ready": 1}
    work = {"fetched": 3, "fetch_seconds": 2.0, "fetch_cpu_seconds": 0.25, "collate_seconds": 0.5, "read_bytes": 4096}
    run(
        tmp_path,
        loaded(1, 0.0, **first, **work, rows=8, bytes=100),
        loaded(2, 1.0, batches=2, wait_seconds=0.25, ready=5, rows=8, bytes=100, core_wait_seconds=0.125),
        facts={"workers": 2, "prefetch_factor": 4, "persistent_workers": False, "pin_memory": True},
    )
    told = account_of(tmp_path).loader
    nothing = dict.fromkeys((name for name in LOADER_SECONDS), 0.0)
    assert asdict(told) == nothing | {
        "steps": 2,
        "epochs": 1,
        "batches": 4,
        "rows": 16,
        "bytes": 200,
        "wait_seconds": 1.75,
        "first_wait_seconds": 1.25,
        "start_seconds": 0.5,
        "fetched": 3,
        "fetch_seconds": 2.0,
        "fetch_cpu_seconds": 0.25,
        "collate_seconds": 0.5,
        "core_wait_seconds": 0.125,
        "read_bytes": 4096,
        "mean_ready": 1.5,
        "workers": 2,
        "prefetch_factor": 4,
        "persistent_workers": False,
        "pin_memory": True,
    }


def test_older_records_tell_nothing_of_it(tmp_path):
    assert account_of(run(tmp_path, step(1, 0.0, 1.0))).loader is None
    steps = read_run(tmp_path).series.steps
    assert (steps.loader_seconds, steps.ready_batches) == ({}, [None])


def test_the_series_has_its_times_where_it_was_watched(tmp_path):
    run(
        tmp_path,
        loaded(1, 0.0, batches=1, wait_seconds=0.25),
        step(2, 1.0, 1.0),
        loaded(3, 2.0, batches=2, wait_seconds=0.5, ready=3),
    )
    steps = read_run(tmp_path).series.steps
    assert steps.loader_seconds == {"wait_seconds": [0.25, None, 0.5]}
    assert steps.ready_batches == [None, None, 1.5]


def test_a_batch_that_told_no_rows_leaves_them_unknown(tmp_path):
    run(tmp_path, loaded(1, 0.0, batches=1, wait_seconds=0.25, rows=4), loaded(2, 1.0, batches=1, wait_seconds=0.25))
    assert account_of(tmp_path).loader.rows is None


def test_the_times_of_a_step_are_those_of_the_account():
    assert set(LOADER_SECONDS) < set(LoaderAccount.__dataclass_fields__)


def test_a_record_is_read_as_it_was_written(tmp_path):
    written = loaded(1, 0.0, batches=0, wait_seconds=0.0, ready=0, rows=0, fetch_seconds=0.5)
    assert written["loader"] == {"batches": 0, "wait_seconds": 0.0, "ready": 0, "rows": 0, "fetch_seconds": 0.5}
    read = msgspec.convert(json.loads(json.dumps(written)), StepRecord)
    assert read.loader == StepLoader(batches=0, wait_seconds=0.0, ready=0, rows=0, fetch_seconds=0.5)
