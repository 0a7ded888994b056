"""Children and their counters, from a hand-made /proc; and one real child."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf_efficient.recording import probes as family
from hf_efficient.recording.probes import children_of, cpu_seconds_of, io_bytes_of, siblings


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """Process 7 with the children 8 and 9, of which 9 has ended; a hundred ticks a second."""
    monkeypatch.setattr(family, "_TICKS_PER_SECOND", 100)
    (tmp_path / "7/task/7").mkdir(parents=True)
    (tmp_path / "7/task/7/children").write_text("8 9 ")
    (tmp_path / "8").mkdir()
    (tmp_path / "7/stat").write_text("7 (a (strange) name) S 1 7 7 0 -1 4 0 0 0 0 150 50 30 20 20 0 3 0")
    (tmp_path / "8/stat").write_text("8 (pt_data_worker) R 7 7 7 0 -1 4 0 0 0 0 400 100 0 0 20 0 1 0")
    for pid, read in ((7, 1000), (8, 24)):
        (tmp_path / f"{pid}/io").write_text(f"rchar: 1\nwchar: 2\nread_bytes: {read}\nwrite_bytes: 10\n")
    return tmp_path


def test_a_hand_made_family(proc):
    assert children_of(7, proc) == [8, 9]
    assert cpu_seconds_of([7], proc) == (2.0, 0.5)
    assert cpu_seconds_of([8, 9], proc) == (5.0, 0.0)
    assert io_bytes_of([7, 8, 9], proc) == (1024, 20)


def test_where_the_system_does_not_tell_what_was_read(tmp_path):
    assert io_bytes_of([os.getpid()], tmp_path) is None


def test_a_real_child_is_found_with_and_without_proc():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in children_of(os.getpid())
        assert child.pid in children_of(os.getpid(), Path("/nowhere"))
        child.communicate(b"\n")


def test_a_process_by_itself_has_no_other_ranks():
    assert siblings({}) == siblings({"LOCAL_WORLD_SIZE": "1"}) == siblings({"LOCAL_WORLD_SIZE": "many"}) == []


def test_the_other_ranks_are_the_launchers_other_children(monkeypatch):
    monkeypatch.setattr(family, "children_of", lambda pid: [os.getpid(), 4242] if pid == os.getppid() else [])
    assert siblings({"LOCAL_WORLD_SIZE": "2"}) == [4242]
