"""A run is found by its output directory and by the folder of its records."""

from __future__ import annotations

import os

import pytest

import hf_efficient
from hf_efficient.accounting.account import account_of, load_run, write_account
from hf_efficient.errors import OutputError
from hf_efficient.run_dir.paths import records_folder

PROCESS = (
    '{"kind": "process", "schema_version": 1, "rank": 0, "pid": 1, "way": "trainer", "process_start_from": "kernel", '
    '"began_at_seconds": 1.0, "process": 0}\n'
    '{"kind": "end", "ended": "done", "error": null, "at_seconds": 3.5, "memory": {}, "process": 0}\n'
)


@pytest.fixture
def run_dir(tmp_path):
    records = tmp_path / "run" / "efficiency"
    records.mkdir(parents=True)
    (records / "spans.jsonl").write_text(PROCESS)
    return tmp_path / "run"


def test_by_output_directory_and_by_records(run_dir):
    assert load_run(run_dir) == load_run(str(run_dir / "efficiency"))
    assert load_run(run_dir).time.wall_seconds == 2.5
    assert hf_efficient.load_run is load_run


def test_records_before_run_json_and_run_json_without_records(run_dir):
    write_account(run_dir / "efficiency", account_of(run_dir / "efficiency"))
    spans = run_dir / "efficiency/spans.jsonl"
    spans.write_text(PROCESS.replace("3.5", "4.5"))
    assert load_run(run_dir).time.wall_seconds == 3.5
    spans.unlink()
    assert load_run(run_dir).time.wall_seconds == 2.5


def test_no_run(tmp_path):
    with pytest.raises(OutputError, match="no such folder; name the OUTPUT_DIR of a run"):
        records_folder(tmp_path / "none")
    with pytest.raises(OutputError, match="holds no records of a run"):
        load_run(tmp_path)


def test_a_start_is_shown_where_there_is_nothing_else(run_dir):
    own, start = run_dir / "efficiency", run_dir / "efficiency/starting"
    start.mkdir()
    spans = own / "spans.jsonl"
    spans.rename(start / "spans.jsonl")
    os.utime(start / "spans.jsonl", (1000, 1000))
    assert records_folder(run_dir) == records_folder(own) == start
    assert load_run(run_dir).time.wall_seconds == 2.5
    for written, latest in ((999, start), (1001, own)):
        spans.write_text(PROCESS)
        os.utime(spans, (written, written))
        assert (records_folder(run_dir), records_folder(run_dir, latest=True)) == (own, latest)
    spans.unlink()
    (own / "run.json").touch()  # of a run whose records are gone
    assert records_folder(run_dir) == own
