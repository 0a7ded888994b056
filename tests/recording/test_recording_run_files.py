"""The thread that writes a run, and its lines: what a kill leaves, what cannot be written, a probe that hangs."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from hand_clock import lines
from waiting import wait_for, wait_for_line

from hf_efficient.accounting.account import account_of
from hf_efficient.errors import OutputError
from hf_efficient.recording import run_files
from hf_efficient.recording.stop import RunStopped
from hf_efficient.recording.system import SystemSampler
from hf_efficient.records.steps import StepRecord, TokenCounts
from hf_efficient.run_dir.jsonl import JsonlFile, last_record
from tests.conftest import read_steps

YOUNG = """
import sys, time
from pathlib import Path
from hf_efficient.recording import run_files
from hf_efficient.recording.timeline import process_timeline

run_files._ROUND_SECONDS = 3600  # what reaches the disk sooner does so because the run was opened
timeline = process_timeline()
timeline.begin("imports")
with timeline.phase("model_load"):
    time.sleep(0.01)
timeline.open(Path(sys.argv[1]), 0, "recipe")
timeline.enter("trainer_setup")
time.sleep(3600)
"""


def test_a_stop_that_was_asked_for_is_no_error():
    assert run_files.ending_of(RunStopped(7, 60)) == ("stopped", "after step 7 of 60; checkpoint-7 is saved")


def test_a_run_that_is_killed_at_once_has_an_account(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen([sys.executable, "-c", YOUNG, str(tmp_path)], env=environment)
    try:
        wait_for_line(tmp_path / "spans.jsonl", 3)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    found = account_of(tmp_path)
    assert (found.ended, found.recorded_by, found.steps.count) == ("died", "recipe", 0)
    assert set(found.time.phase_seconds) >= {"imports", "model_load"}
    assert found.time.phase_seconds["model_load"] >= 0.01
    assert found.time.wall_seconds >= sum(found.time.phase_seconds[name] for name in ("imports", "model_load"))


def test_the_heartbeat_tells_what_goes_on(timeline, hand, tmp_path, monkeypatch):
    monkeypatch.setattr(run_files, "_ROUND_SECONDS", 0.01)
    timeline.open(tmp_path, 0, "trainer")
    timeline.enter("evaluation")
    hand.wait(5)

    def alive():
        path = tmp_path / "spans.jsonl"
        return [one for one in lines(path) if one["kind"] == "alive"] if path.exists() else []

    wait_for(lambda: bool(alive()) and alive()[0]["at_seconds"] == 8.0)
    (heartbeat,) = alive()
    assert (heartbeat["open_phase"], heartbeat["phase_seconds"]) == ("evaluation", {"evaluation": 5.0})
    assert heartbeat["memory"]["peak_rss_bytes"] > 0
    timeline.end()
    assert alive() == []


@pytest.mark.parametrize("fault", ["never a folder", "a folder in place of the file"])
def test_what_cannot_be_written_is_one_warning(timeline, tmp_path, caplog, fault):
    folder = tmp_path / "efficiency"
    if fault == "never a folder":
        folder.write_text("")
    else:
        (folder / "spans.jsonl").mkdir(parents=True)
    timeline.open(folder, 0, "trainer")
    timeline.note("evaluation", step=1)
    timeline.end()
    assert len([message for message in caplog.messages if "cannot be written" in message]) == 1


def test_a_probe_that_hangs_is_left_behind_and_the_records_are_written(timeline, tmp_path, caplog, monkeypatch):
    hanging, go_on = threading.Event(), threading.Event()

    def hangs(self):
        hanging.set()
        go_on.wait(20)
        return {"late": 1}

    monkeypatch.setattr(run_files, "_PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(SystemSampler, "_sample", hangs)
    timeline.open(tmp_path, 0, "trainer")
    assert hanging.wait(20)
    timeline.note("evaluation", step=1)
    timeline.end()
    assert [one["kind"] for one in lines(tmp_path / "spans.jsonl")][-1] == "end"
    with timeline.phase("evaluation"):
        pass
    go_on.set()
    wait_for(lambda: not any(one.name == "hf-efficient records" for one in threading.enumerate()))
    assert not (tmp_path / "system.jsonl").exists()
    assert [message for message in caplog.messages if "hf" not in message][:1] == [
        "Memory and energy of this process are no longer sampled (TimeoutError: no answer within 0.1 s). "
        "Training continues; the account names what is missing."
    ]


def test_what_comes_after_the_end_is_in_the_account_too(timeline, hand, tmp_path):
    timeline.trainer_begins()
    timeline.open(tmp_path, 0, "trainer")
    timeline.end()
    assert "evaluation</th>" not in (tmp_path / "report.html").read_text()
    with timeline.phase("evaluation"):
        hand.wait(7)
    timeline.exits()
    assert "evaluation</th>" in (tmp_path / "report.html").read_text()
    assert json.loads((tmp_path / "run.json").read_text())["time"]["wall_seconds"] == 10.0


def test_the_time_that_the_last_page_takes_is_counted(timeline, hand, tmp_path):
    timeline.begin("imports")
    timeline.open(tmp_path, 0, "recipe")
    timeline.end()
    finish, pages = timeline.finish, []

    def slow(directory, earlier, *, page, tell):
        pages.append((page, tell))
        hand.wait(4 * page)
        return finish(directory, page=False, tell=tell)

    timeline.finish = slow
    timeline.exits()
    time = json.loads((tmp_path / "run.json").read_text())["time"]
    assert pages == [(True, False), (False, False)]
    assert (time["wall_seconds"], time["unattributed_seconds"]) == (7.0, 0.0)
    assert time["phase_seconds"] == {"imports": 3.0, "shutdown": 4.0}


def test_an_account_that_cannot_be_written_is_one_warning_and_other_ranks_write_none(timeline, tmp_path, caplog):
    (tmp_path / "run.json").mkdir()
    timeline.open(tmp_path, 0, "recipe")
    timeline.end()
    timeline.exits()
    (message,) = caplog.messages
    assert message.startswith(f"{tmp_path}/run.json cannot be written")
    timeline.release()
    timeline.open(tmp_path / "other", 1, "recipe")
    timeline.end()
    assert [path.name for path in (tmp_path / "other").glob("*.json")] == []


def record(step, segment=0):
    return StepRecord(segment, 0, step, step / 4, 2.0, 1.0, {"forward": 0.5}, 1, TokenCounts(8, 6, None), loss=0.25)


def line(record):
    return json.dumps(record.to_json()).encode() + b"\n"


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
        (b'{"text": "' + b"x" * 70_000 + b'"}\n{"half": "' + b"y" * 500, b'{"text": "' + b"x" * 70_000 + b'"}\n'),
    ],
)
def test_a_file_that_a_crash_left_is_corrected(tmp_path, before, after):
    path = tmp_path / "new" / "steps.jsonl"
    path.parent.mkdir()
    path.write_bytes(before)
    JsonlFile(path).append(b'{"a": 3}\n')
    assert path.read_bytes() == after + b'{"a": 3}\n'


def test_lines_take_the_place_of_the_tail(tmp_path):
    path = tmp_path / "folder" / "spans.jsonl"
    file = JsonlFile(path)
    file.append(b'{"kind": "process"}\n', b'{"alive": "for a long while"}\n')
    length = len(path.read_bytes())
    file.append(b"", b'{"alive": 1}\n')
    assert len(path.read_bytes()) == length  # no kill can leave a piece of it
    assert lines(path) == [{"kind": "process"}, {"alive": 1}]
    file.append(b'{"kind": "span"}\n', b'{"alive": 2}\n')
    file.append(b"", b"")  # nothing to say: what was said stays
    assert lines(path)[1:] == [{"kind": "span"}, {"alive": 2}]
    file.append(b'{"kind": "end"}\n')
    file.append(b'{"kind": "span"}\n')
    assert [one["kind"] for one in lines(path)] == ["process", "span", "end", "span"]


def test_half_a_last_line_and_a_broken_one_are_skipped(tmp_path, caplog):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b"\0\0\0\n\n" + line(record(1)) + b'{"schema_version": 1, "se')
    assert list(read_steps(path)) == [record(1)]
    assert caplog.messages == [f"{path}:1 is not a JSON object; it is skipped"]
    assert last_record(path) == record(1).to_json()


@pytest.mark.parametrize("zeros", [10, 70_000, 3_000_000])
def test_zeros_that_a_power_cut_left_cost_no_record(tmp_path, zeros):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(line(record(1)) + b"\0" * zeros)
    assert last_record(path) == record(1).to_json()
    JsonlFile(path).append(line(record(2)))
    assert list(read_steps(path)) == [record(1), record(2)]
    assert last_record(path) == record(2).to_json()


def test_reading_what_is_not_there_or_not_a_record(tmp_path):
    path = tmp_path / "spans.jsonl"
    path.write_text('{"process": 4}\n{"process": "x"}\n{"other": 3}\n')
    found = [last_record(path, "process"), last_record(path), last_record(path, "nothing")]
    assert found == [{"process": 4}, {"other": 3}, None]
    missing = tmp_path / "steps.jsonl"
    assert last_record(missing) is None
    with pytest.raises(OutputError, match=r"steps.jsonl: cannot be read \(No such file or directory\); name a run's"):
        list(read_steps(missing))
    missing.write_text('{"schema_version": 99}\n')
    with pytest.raises(OutputError, match=r"steps.jsonl:1: schema_version 99 is newer than 1, which is read here"):
        list(read_steps(missing))
