from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hf_efficient.accounting.account import account_of
from hf_efficient.errors import OutputError
from hf_efficient.records.steps import StepRecord, TokenCounts
from hf_efficient.run_dir.reading import last_record, read_steps
from hf_efficient.run_dir.stream import JsonlStream


def record(step, segment=0):
    return StepRecord(segment, 0, step, step / 4, 2.0, 1.0, {"forward": 0.5}, 1, TokenCounts(8, 6, None), loss=0.25)


def wait_for(path, lines):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} never had {lines} lines")


def test_lines_are_written_while_the_stream_is_open_and_at_its_end(tmp_path):
    path = tmp_path / "new" / "folder" / "steps.jsonl"
    stream = JsonlStream(path, flush_seconds=0.01)
    stream.write({"step": 1})
    wait_for(path, 1)
    stream.close()
    late = JsonlStream(path, flush_seconds=1000)
    late.write({"step": 2, "word": "ü"})
    late.write({"step": 3})
    late.close()
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] == [
        {"step": 1},
        {"step": 2, "word": "ü"},
        {"step": 3},
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b""),
        (b'{"a": 1}\n', b'{"a": 1}\n'),
        (b'{"a": 1}\n{"a": 2}', b'{"a": 1}\n{"a": 2}\n'),
        (b'{"a": 1}\n{"a": ', b'{"a": 1}\n'),
        (b'{"a": 1}\n{"a": "\xc3', b'{"a": 1}\n'),
        (b'{"a"', b""),
        (b'{"a": 1}\n17', b'{"a": 1}\n'),
    ],
)
def test_a_file_that_a_crash_left_is_mended(tmp_path, before, after):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(before)
    stream = JsonlStream(path)
    stream.write({"a": 3})
    stream.close()
    assert path.read_bytes() == after + b'{"a": 3}\n'


def test_mending_looks_beyond_its_first_block(tmp_path):
    path = tmp_path / "steps.jsonl"
    line = json.dumps({"text": "x" * 1000}).encode() + b"\n"
    path.write_bytes(line * 200 + b'{"half": "' + b"y" * 500)
    JsonlStream(path).close()
    assert path.read_bytes() == line * 200


@pytest.mark.parametrize("bad", [{"a": float("nan")}, {"a": object()}])
def test_what_json_cannot_hold_is_a_fault_of_the_stream(tmp_path, caplog, bad):
    stream = JsonlStream(tmp_path / "steps.jsonl")
    stream.write(bad)
    stream.close()
    assert len(caplog.records) == 1
    assert not (tmp_path / "steps.jsonl").exists()


def test_an_unwritable_file_is_one_warning(tmp_path, caplog):
    path = tmp_path / "steps.jsonl"
    stream = JsonlStream(path, flush_seconds=0.01)
    path.mkdir()
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            stream.write({"step": step})
            time.sleep(0.05)
        stream.close()
    assert [entry.getMessage() for entry in caplog.records] == [
        f"{path} cannot be written ([Errno 21] Is a directory: '{path}'). Training goes on; its steps are not recorded."
    ]


def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    stream = JsonlStream(tmp_path / "file" / "steps.jsonl")
    stream.write({"step": 1})
    stream.close()
    assert len(caplog.records) == 1
    assert "cannot be written" in caplog.text


def test_a_killed_process_leaves_what_was_queued_two_seconds_ago(tmp_path):
    path = tmp_path / "steps.jsonl"
    script = (
        "import sys, time, pathlib\n"
        "from hf_efficient.run_dir.stream import JsonlStream\n"
        f"stream = JsonlStream(pathlib.Path({str(path)!r}))\n"
        "stream.write({'step': 1})\n"
        "stream.write({'step': 2})\n"
        "time.sleep(60)\n"
    )
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(root)})
    wait_for(path, 2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_records_go_to_json_and_back(tmp_path):
    path = tmp_path / "steps.jsonl"
    stream = JsonlStream(path)
    for step in (1, 2):
        stream.write(record(step).to_json())
    stream.close()
    assert list(read_steps(path)) == [record(1), record(2)]
    assert last_record(path) == record(2).to_json()


def test_half_a_last_line_is_skipped_with_a_word(tmp_path, caplog):
    path = tmp_path / "steps.jsonl"
    path.write_text(json.dumps(record(1).to_json()) + "\n" + '{"schema_version": 1, "se')
    with caplog.at_level(logging.INFO):
        assert list(read_steps(path)) == [record(1)]
    assert [entry.getMessage() for entry in caplog.records] == [f"{path}:2 is half-written and skipped"]
    assert last_record(path) == record(1).to_json()


def test_a_broken_line_in_the_middle_is_skipped_with_a_warning(tmp_path, caplog):
    path = tmp_path / "steps.jsonl"
    path.write_text("\0\0\0\n\n" + json.dumps(record(1).to_json()) + "\n")
    assert list(read_steps(path)) == [record(1)]
    assert [(entry.levelname, entry.getMessage()) for entry in caplog.records] == [
        ("WARNING", f"{path}:1 is not a JSON object; it is skipped")
    ]


@pytest.mark.parametrize("zeros", [10, 70_000, 3_000_000])
def test_zeros_that_a_power_cut_left_cost_no_record(tmp_path, zeros):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(json.dumps(record(1).to_json()).encode() + b"\n" + b"\0" * zeros)
    assert last_record(path) == record(1).to_json()
    stream = JsonlStream(path)
    stream.write(record(2).to_json())
    stream.close()
    assert list(read_steps(path)) == [record(1), record(2)]


def test_the_last_record_that_holds_a_number(tmp_path):
    path = tmp_path / "spans.jsonl"
    path.write_text('{"process": 4}\n{"process": "x"}\n{"other": 3}\n')
    assert last_record(path, "process") == {"process": 4}
    assert last_record(path) == {"other": 3}
    assert last_record(path, "nothing") is None


def test_reading_what_is_not_there_or_not_a_record(tmp_path):
    missing = tmp_path / "steps.jsonl"
    assert last_record(missing) is None
    with pytest.raises(OutputError, match=r"steps.jsonl: cannot be read \(No such file or directory\); name a run's"):
        list(read_steps(missing))
    missing.write_text('{"schema_version": 99}\n')
    with pytest.raises(OutputError, match=r"steps.jsonl:1: schema_version 99 is newer than 1, which is read here"):
        list(read_steps(missing))


YOUNG = """
import functools, sys, time
from pathlib import Path
from hf_efficient.recording import span_records
from hf_efficient.recording.timeline import process_timeline

# A round of an hour: whatever reaches the disk sooner does so because the run was opened.
span_records.SpanStream = functools.partial(span_records.SpanStream, flush_seconds=3600)
timeline = process_timeline()
timeline.begin("imports")
with timeline.phase("model_load"):
    time.sleep(0.01)
timeline.open(Path(sys.argv[1]), 0, "recipe")
timeline.enter("trainer_setup")
time.sleep(3600)
"""


def test_a_run_that_is_killed_at_once_has_an_account(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen([sys.executable, "-c", YOUNG, str(tmp_path)], env=environment)
    try:
        wait_for(tmp_path / "spans.jsonl", 3)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    found = account_of(tmp_path)
    assert (found.ended, found.recorded_by, found.steps.count) == ("died", "recipe", 0)
    assert set(found.time.phase_seconds) >= {"imports", "model_load"}
    assert found.time.phase_seconds["model_load"] >= 0.01
    assert found.time.wall_seconds >= sum(found.time.phase_seconds[name] for name in ("imports", "model_load"))


@pytest.mark.parametrize("awake", [True, False])
def test_what_was_written_moves_along_with_the_file(tmp_path, awake):
    old, new = tmp_path / "starting/steps.jsonl", tmp_path / "steps.jsonl"
    new.write_text('{"another": "run"}\n')
    stream = JsonlStream(old, flush_seconds=0.01)
    stream.write({"step": 1})
    if not awake:
        stream.close()
    stream.move_to(new)
    assert new.read_text() == '{"step": 1}\n'
    stream.write({"step": 2})
    if awake:
        wait_for(new, 2)
    stream.close()
    assert (new.read_text(), old.exists()) == ('{"step": 1}\n{"step": 2}\n', False)


def test_a_file_that_cannot_be_moved_ends_the_stream_with_one_warning(tmp_path, caplog):
    stream = JsonlStream(tmp_path / "starting/steps.jsonl")
    stream.write({"step": 1})
    (tmp_path / "file").touch()
    stream.move_to(tmp_path / "file/steps.jsonl")
    stream.write({"step": 2})
    stream.close()
    assert (tmp_path / "starting/steps.jsonl").read_text() == '{"step": 1}\n'
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        f"{tmp_path / 'starting/steps.jsonl'} cannot be written"
    ]
