"""``hf-efficient report --watch``: it looks again and again, ends by itself, and only reads."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from hf_efficient.cli import report as watches

START = {
    "kind": "process",
    "schema_version": 1,
    "process": 0,
    "rank": 0,
    "pid": 1,
    "way": "recipe",
    "process_start_from": "kernel",
    "began_at_seconds": 0.0,
}
ALIVE = {
    "kind": "alive",
    "process": 0,
    "at_seconds": 7.5,
    "started_at_seconds": 4.0,
    "open_phase": "evaluation",
    "phase_seconds": {"evaluation": 3.5},
    "memory": {},
}
END = {"kind": "end", "process": 0, "ended": "done", "error": None, "at_seconds": 9.0, "memory": {}}


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run in its evaluation."""
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "out/efficiency").mkdir(parents=True)
    write(tmp_path / "out", START, ALIVE)
    return tmp_path / "out"


def write(output: Path, *lines: object) -> None:
    (output / "efficiency/spans.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def age(output: Path, seconds: float) -> None:
    at = time.time() - seconds
    os.utime(output / "efficiency/spans.jsonl", (at, at))


@pytest.fixture
def between_looks(monkeypatch):
    """What happens between one look and the next, in order; nobody sleeps."""
    events = []

    def sleep(seconds):
        assert events, "it looks on for ever"
        events.pop(0)()

    monkeypatch.setattr(watches.time, "sleep", sleep)
    return events


def test_it_ends_when_the_run_ends(run, output, between_looks):
    between_looks += [lambda: write(output, START, {**ALIVE, "at_seconds": 8.0}), lambda: write(output, START, END)]
    done = run("report", str(output), "--watch")
    assert (done.code, done.err, between_looks) == (0, "", [])
    assert f"{output}  ended after 9.0 s" in done.out


def test_a_run_that_died_long_ago_is_shown_at_once(run, output, between_looks):
    age(output, 3600)
    done = run("report", str(output), "--watch")
    assert done.code == 0
    assert "no sign of life for 1 h 00 min: it was killed, or its machine stands still" in done.out
    assert "it had run for 7.5 s, in evaluation" in done.out


def test_a_run_that_falls_silent_is_given_up_after_a_minute(run, output, between_looks, monkeypatch):
    now = [time.monotonic()]
    monkeypatch.setattr(watches.time, "monotonic", lambda: now[0])
    states = []
    screen = watches._screen
    monkeypatch.setattr(watches, "_screen", lambda view, run_dir: states.append(view.state) or screen(view, run_dir))

    def wait(seconds):
        def happens():
            now[0] += seconds

        return happens

    between_looks += [wait(5), wait(6), wait(48), wait(2)]
    assert run("report", str(output), "--watch").code == 0
    assert states == ["running", "running", "silent", "silent", "gone"]


def test_a_run_without_records_is_waited_for(run, output, between_looks):
    (output / "efficiency/spans.jsonl").unlink()
    between_looks += [(output / "efficiency/spans.jsonl").touch, lambda: write(output, START, END)]
    done = run("report", str(output), "--watch")
    assert (done.code, between_looks) == (0, [])
    assert "ended after 9.0 s" in done.out


def test_a_folder_that_is_not_there_yet_is_waited_for(run, output, between_looks, monkeypatch):
    later = output.parent / "later"
    texts = []
    screen = watches._screen

    def shown(view, run_dir):
        texts.append(str(screen(view, run_dir)))
        return screen(view, run_dir)

    monkeypatch.setattr(watches, "_screen", shown)
    between_looks += [later.mkdir, (later / "efficiency").mkdir, lambda: write(later, START, END)]
    done = run("report", str(later), "--watch")
    assert (done.code, done.err, between_looks) == (0, "", [])
    assert texts[:3] == [
        f"waiting for the folder {later} of a run; Ctrl-C ends it",
        *[f"waiting for the first records in {later}; Ctrl-C ends it"] * 2,
    ]
    assert f"{later}  ended after 9.0 s" in done.out


def test_ctrl_c_ends_waiting_quietly(run, output, between_looks):
    def interrupt():
        raise KeyboardInterrupt

    between_looks.append(interrupt)
    done = run("report", str(output.parent / "later"), "--watch")
    assert (done.code, done.err) == (0, "")


def test_a_record_that_is_being_written_over_is_looked_at_again(run, output, between_looks):
    broken = {"kind": "process", "process": 0, "schema_version": 9}
    between_looks += [lambda: write(output, START, broken)] * 5 + [lambda: write(output, START, END)]
    done = run("report", str(output), "--watch")
    assert (done.code, between_looks) == (0, [])
    between_looks += [lambda: write(output, START, ALIVE), *[lambda: write(output, START, broken)] * 6]
    write(output, START, ALIVE)
    done = run("report", str(output), "--watch")
    assert (done.code, "schema_version 9 is newer" in done.err) == (2, True)


def test_ctrl_c_ends_it_quietly(run, output, between_looks):
    def interrupt():
        raise KeyboardInterrupt

    between_looks.append(interrupt)
    done = run("report", str(output), "--watch")
    assert (done.code, done.err) == (0, "")


def test_it_leaves_the_folder_as_it_is(run, output, between_looks):
    write(output, START, END)
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    run("report", str(output), "--watch")
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == before


def test_a_half_written_line_is_no_news(run, output, between_looks):
    with (output / "efficiency/spans.jsonl").open("a") as file:
        file.write('{"kind": "sp')
    age(output, 3600)
    assert run("report", str(output), "--watch").err == ""


def test_what_is_no_run_and_what_does_not_go_together(run, output, tmp_path):
    gone = tmp_path / "gone/deeper"
    for path in (gone, output / "efficiency/spans.jsonl"):
        done = run("report", str(path), "--watch")
        assert (done.code, done.err) == (2, f"error: {path}: no such folder; name the OUTPUT_DIR of a run\n")
    done = run("report", str(output), "--watch", "--json")
    assert done.code == 2
    assert "--watch shows one run in the terminal" in done.err


def test_a_start_is_shown_and_followed_to_its_place(run, output, between_looks, monkeypatch):
    """Over an old run, too, whose records are there until the new one is ready."""
    loading = {**ALIVE, "open_phase": "model_load", "phase_seconds": {"model_load": 3.5}}
    write(output, START, END)
    age(output, 100)
    start = output / "efficiency/starting"
    (start / "efficiency").mkdir(parents=True)
    write(start, START, loading)
    (start / "efficiency/spans.jsonl").rename(start / "spans.jsonl")
    texts = []
    screen = watches._screen

    def shown(view, run_dir):
        texts.append(view.account.time.processes[-1].open_phase)
        return screen(view, run_dir)

    monkeypatch.setattr(watches, "_screen", shown)
    rank_files = watches.rank_files

    def moves_while_it_is_looked_at(directory, kind):
        found = rank_files(directory, kind)
        for path in found.values():
            monkeypatch.setattr(watches, "rank_files", rank_files)
            path.replace(output / "efficiency/spans.jsonl")
        return found

    between_looks += [
        lambda: monkeypatch.setattr(watches, "rank_files", moves_while_it_is_looked_at),
        lambda: write(output, START, ALIVE),
        lambda: write(output, START, END),
    ]
    done = run("report", str(output), "--watch")
    assert (done.code, done.err, between_looks) == (0, "", [])
    assert texts == ["model_load", "model_load", "evaluation", None]
