"""What becomes of a proof whose processes fail, are killed, hang or say nothing."""

from __future__ import annotations

import time

import psutil
import pytest

from hf_efficient.preflight.launches import ProofLaunch, launch_part, preflight
from hf_efficient.records.account import PreflightFailure


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "out/.preflight"
    made.mkdir(parents=True)
    return made


def launched(fake, folder, code: str, limit: float = 60) -> PreflightFailure | None:
    return launch_part(ProofLaunch(fake(code)), folder, "save", limit)[1]


def test_processes_that_come_to_their_end(fake, folder):
    assert launched(fake, folder, "notes('done'); notes('done', 1)") is None


def test_one_that_did_not(fake, folder):
    failure = launched(fake, folder, "notes('done'); notes('saving', 1); print('why', 3)")
    assert failure == PreflightFailure(
        "fault", "saving a checkpoint", "a process ended in saving a checkpoint with exit code 0: why 3", 1
    )


def test_a_process_that_ends_before_its_first_word(fake, folder):
    failure = launched(fake, folder, "raise SystemExit(3)")
    assert failure is not None
    assert failure.message == "a process ended in starting with exit code 3, and it said nothing"


def test_a_killed_process(fake, folder):
    failure = launched(fake, folder, "notes('training'); os.kill(os.getpid(), 9)")
    assert failure is not None
    assert (failure.kind, failure.stage) == ("killed", "the training step on the longest batch")
    assert "for want of host memory perhaps" in failure.message


def test_the_rank_that_ran_out_of_memory_is_told_not_the_one_that_lost_it(fake, folder):
    code = """
notes('training', 0, kind='fault', message='Connection closed by peer')
notes('training', 1, kind='memory', message='out of memory')
time.sleep(60)
"""
    began = time.monotonic()
    failure = launched(fake, folder, code)
    assert failure == PreflightFailure("memory", "the training step on the longest batch", "out of memory", 1)
    assert time.monotonic() - began < 30  # nobody waits for the one that waits


def test_a_killed_process_is_told_not_the_one_that_lost_it(fake, folder):
    code = """
notes('training', 0, kind='fault', message='RuntimeError: [gloo/pair.cc:537] Read error: Connection reset by peer')
notes('training', 1)
print('  traceback : Signal 9 (SIGKILL) received by PID 2252')
raise SystemExit(1)
"""
    failure = launched(fake, folder, code)
    assert failure is not None
    assert (failure.kind, failure.rank) == ("killed", 1)
    failure = launched(fake, folder, code.replace("Read error: Connection reset by peer", "no such layer"))
    assert failure is not None
    assert (failure.kind, failure.rank) == ("fault", 0)


def test_the_last_words_are_those_of_a_process_not_of_its_launcher(fake, folder):
    code = """
notes('loading')
print('it could not be read')
print('E1122 11:09:19 2536 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0')
print('=' * 60)
raise SystemExit(1)
"""
    failure = launched(fake, folder, code)
    assert failure is not None
    assert failure.message.endswith("with exit code 1: it could not be read")


def test_nobody_is_behind_where_all_wait(fake, folder):
    failure = launched(fake, folder, "notes('training'); notes('training', 1); time.sleep(300)", limit=1.5)
    assert failure is not None
    assert (failure.kind, failure.rank) == ("hang", None)
    assert "in the training step on the longest batch: it hangs" in failure.message


def test_a_hang_is_ended_with_all_that_it_started(fake, folder):
    code = """
import subprocess
child = subprocess.Popen(["sleep", "300"])
(out / "child").write_text(str(child.pid))
notes('next'); notes('saving', 1)
time.sleep(300)
"""
    failure = launched(fake, folder, code, limit=1.5)
    assert failure is not None
    assert (failure.kind, failure.rank) == ("hang", 1)
    assert "in saving a checkpoint (rank 1 is behind): it hangs" in failure.message
    assert "efficiency.preflight_minutes" in failure.message
    child = int((folder.parent / "child").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_reading_data_takes_as_long_as_it_does(fake, folder):
    code = """
notes('data')
time.sleep(2.5)
notes('done')
"""
    assert launched(fake, folder, code, limit=1) is None


def test_a_process_that_reads_or_writes_does_not_hang(fake, folder):
    code = """
notes('building')
for _ in range(5):
    time.sleep(0.8)
    (out / "weights").write_bytes(bytes(2 << 20))
notes('done')
"""
    assert launched(fake, folder, code, limit=2.5) is None


def test_stages_are_told_as_they_come(fake, folder):
    code = """
for stage in ("training", "saving", "done"):
    notes(stage)
    time.sleep(0.7)
"""
    told: list[str] = []
    assert launch_part(ProofLaunch(fake(code), on_stage=told.append), folder, "save", 60)[1] is None
    assert told == ["the training step on the longest batch", "saving a checkpoint", "ending"]


def test_a_failure_leaves_its_log_and_nothing_else(fake, tmp_path, tiny_recipe):
    recipe = tiny_recipe()
    found = preflight(recipe, ProofLaunch(fake("print('what it wrote'); notes('loading', kind='load', message='Oh.')")))
    log = tmp_path / "out/efficiency/preflight.log"
    assert not found.passed
    assert found.failure is not None
    assert found.failure.message == f"Oh. All that it wrote is in {log}."
    assert log.read_text() == "what it wrote\n"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["efficiency", "started"]
    assert sorted(path.name for path in log.parent.iterdir()) == ["preflight.json", "preflight.log"]
    assert (tmp_path / "out/started").read_text() == "save "  # what failed is not loaded
