"""The thread that writes a run: what a kill leaves, what cannot be written, a probe that hangs, what a run leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from hand_clock import Hand, timeline_of
from waiting import wait_for, wait_for_line

from hf_efficient.accounting.account import account_of
from hf_efficient.recording import run_files
from hf_efficient.recording.run_files import DONE, ending_of
from hf_efficient.recording.stop import EndedBySignal, RunStopped
from hf_efficient.recording.system import SystemSampler


@pytest.fixture
def hand():
    return Hand()


@pytest.fixture
def timeline(hand):
    """Of a process that started three seconds before."""
    made = timeline_of(hand, lived_seconds=3)
    yield made
    made.release()


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_endings():
    assert ending_of(None) == DONE
    assert ending_of(ValueError("first\nsecond")) == ("error", "ValueError: first")
    assert ending_of(KeyboardInterrupt()) == ("error", "KeyboardInterrupt")
    assert ending_of(EndedBySignal(15)) == ("error", "EndedBySignal: SIGTERM")
    assert ending_of(RunStopped(7, 60)) == ("stopped", "after step 7 of 60; checkpoint-7 is saved")


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
        "Training goes on; the account names what is missing."
    ]


def wall(folder):
    return json.loads((folder / "run.json").read_text())["time"]["wall_seconds"]


def test_what_comes_after_the_end_is_in_the_account_too(timeline, hand, tmp_path):
    timeline.trainer_begins()
    timeline.open(tmp_path, 0, "trainer")
    timeline.end()
    assert "evaluation</th>" not in (tmp_path / "report.html").read_text()
    with timeline.phase("evaluation"):
        hand.wait(7)
    timeline.exits()
    assert "evaluation</th>" in (tmp_path / "report.html").read_text()
    assert wall(tmp_path) == 10.0


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
    account = json.loads((tmp_path / "run.json").read_text())
    assert pages == [(True, False), (False, False)]
    assert account["time"]["wall_seconds"] == 7.0
    assert account["time"]["phase_seconds"] == {"imports": 3.0, "shutdown": 4.0}
    assert account["time"]["unattributed_seconds"] == 0.0


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
