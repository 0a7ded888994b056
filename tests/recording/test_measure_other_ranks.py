from __future__ import annotations

import json
import threading
import time

import pytest

from hf_efficient.recording.run_files import await_other_ranks

START, SPAN, ALIVE, END = ({"kind": kind, "process": 0} for kind in ("process", "span", "alive", "end"))


@pytest.fixture
def four_ranks(monkeypatch):
    """Two of them on this machine."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")


def write(folder, rank, *records):
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / f"spans.rank{rank}.jsonl").write_text(lines)


@pytest.mark.parametrize(
    ("records", "ended"),
    [
        ([START, SPAN, END], True),
        ([START, END, SPAN, ALIVE], True),  # what comes after the end of its training
        ([START, SPAN, ALIVE], False),
        ([START, END, START, ALIVE], False),  # the run was resumed
        ([], False),
    ],
)
def test_whether_a_rank_has_ended(four_ranks, tmp_path, records, ended):
    write(tmp_path, 1, *records)
    assert await_other_ranks(tmp_path, most_seconds=0) is ended


def test_ranks_of_other_machines_are_waited_for_where_they_write_here(four_ranks, tmp_path):
    assert not await_other_ranks(tmp_path, most_seconds=0)  # the one of this machine is not there yet
    write(tmp_path, 1, START, END)
    assert await_other_ranks(tmp_path, most_seconds=0)
    write(tmp_path, 3, START, ALIVE)
    assert not await_other_ranks(tmp_path, most_seconds=0)


def test_it_waits_for_the_last_one_and_not_for_ever(four_ranks, tmp_path):
    write(tmp_path, 1, START)
    late = threading.Timer(0.2, write, (tmp_path, 1, START, END))
    late.start()
    assert await_other_ranks(tmp_path, most_seconds=30)
    late.join()
    write(tmp_path, 1, START)
    began = time.monotonic()
    assert not await_other_ranks(tmp_path, most_seconds=0.1)
    assert time.monotonic() - began >= 0.1


def test_one_process_waits_for_nobody(tmp_path, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    write(tmp_path, 1, START)  # of an earlier run with more of them
    assert await_other_ranks(tmp_path, most_seconds=0)
