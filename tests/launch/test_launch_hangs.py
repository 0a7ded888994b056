"""Ranks that hang: what counts as one, and real processes that are stopped, shown and killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hf_efficient.launch.hangs import HangWatch, main_frames
from tests.conftest import own_environment

RANK = """
import os, time
from hf_efficient.launch.hangs import dump_when_asked
dump_when_asked(os.environ)
def backward():
    os.write(1, b"."), time.sleep(60)
backward()
"""


@pytest.fixture
def folder(tmp_path):
    """Of two ranks that are this process."""
    (tmp_path / "records").mkdir()
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.stack").write_text(f"{os.getpid()}\n")
    return tmp_path


@pytest.fixture
def ranks(tmp_path):
    """Two processes that wait in ``backward``."""
    (tmp_path / "records").mkdir()
    told = [own_environment(RANK=str(rank), HF_EFFICIENT_STATUS_FILE=str(tmp_path / "status")) for rank in (0, 1)]
    started = [subprocess.Popen([sys.executable, "-c", RANK], env=one, stdout=subprocess.PIPE) for one in told]
    assert [one.stdout and one.stdout.read(1) for one in started] == [b".", b"."]
    yield started
    for one in started:
        one.kill()
        one.communicate()


def beats(folder: Path, at: int, began: float, phases=("backward", "forward")) -> None:
    """What both ranks say ``at`` seconds, of a step that ``began`` then."""
    for rank, phase in enumerate(phases):
        line = {"kind": "alive", "process": 0, "at_seconds": at, "started_at_seconds": began, "open_phase": phase}
        name = "spans.jsonl" if rank == 0 else f"spans.rank{rank}.jsonl"
        (folder / "records" / name).write_text(json.dumps(line) + "\n")


def watched(folder: Path, phases=("backward", "forward"), bound: float | None = None) -> list[int]:
    """After three steps of 40 s the heartbeats continue, and no step ends any more: after how long who hangs."""
    watch = HangWatch(folder, folder / "records", bound)
    for at in range(0, 120, 20):
        beats(folder, at, began=at // 40 * 40)
        assert watch.look(20.0) == []
    for at in range(120, 3000, 20):
        beats(folder, at, 120, phases)
        if found := watch.look(20.0):
            return [at - 120, *(one.number for one in found)]
    return []


def test_the_bound_follows_the_slowest_step_and_the_rank_that_is_behind_hangs(folder):
    assert watched(folder) == [420, 1]  # ten times 40 s, and the look after them
    assert watched(folder, ("backward", "backward"), bound=90.0) == [100, 0, 1]


@pytest.mark.parametrize("phase", ["evaluation", "checkpointing", "compilation", "model_load", "shutdown"])
def test_what_may_take_long_is_no_hang(folder, phase):
    assert watched(folder, ("backward", phase), bound=30.0) == []


def test_a_first_step_is_no_hang(folder):
    watch = HangWatch(folder, folder / "records", 30.0)
    beats(folder, 0, 0, ("trainer_setup", "trainer_setup"))
    assert watch.look(20.0) == []
    for at in range(20, 500, 20):
        beats(folder, at, 20)
        assert watch.look(20.0) == []


def test_a_stopped_rank_is_shown_with_its_stack_and_all_are_killed(tmp_path, ranks):
    """In an evaluation too, which has no bound."""
    (tmp_path / "records/steps.rank1.jsonl").write_text('{"step": 7}\n')
    ranks[1].send_signal(signal.SIGSTOP)
    os.waitpid(ranks[1].pid, os.WUNTRACED)  # a signal takes effect later than it is sent
    watch = HangWatch(tmp_path, tmp_path / "records", 5.0)
    for at in range(4):
        beats(tmp_path, at, 0, ("evaluation", "evaluation"))
        (tmp_path / "records/spans.rank1.jsonl").write_text('{"kind": "alive", "open_phase": "forward"}\n')
        assert watch.look(2.0) == [] or at == 3
    (hanging,) = watch.look(2.0)
    said = watch.stop([hanging]).splitlines()
    assert said[0].startswith(
        "rank 1 hangs, last heard of in forward of step 8: no heartbeat for 8.0 s (it was stopped, SIGSTOP)."
    )
    assert "The others: rank 0 in evaluation." in said[0]
    assert said[1].endswith(", line 6 in backward")
    assert said[-1].startswith(f"The stacks of all threads and ranks are in {tmp_path / 'records/faults'}.")
    names = sorted(path.name for path in (tmp_path / "records/faults").iterdir())
    assert names == ["hang.step8.rank0.txt", "hang.step8.rank1.txt"]
    assert [one.wait(10) for one in ranks] == [-signal.SIGKILL] * 2


def test_the_main_thread_is_the_last_of_a_dump():
    dump = '12\nThread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n\n'
    dump += 'Current thread 0x2 (most recent call first):\n  File "b.py", line 2 in g\n  File "b.py", line 9 in h\n'
    assert main_frames(dump) == ['  File "b.py", line 2 in g', '  File "b.py", line 9 in h']
