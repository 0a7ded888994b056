"""What becomes of a check whose processes fail, are killed, hang or say nothing; notes to figures, by hand."""

import dataclasses
import time

import psutil
import pytest

from hf_efficient.cli.train import run_checked, run_preflight
from hf_efficient.errors import PreflightError
from hf_efficient.preflight.launches import (
    PreflightLaunch,
    RankNotes,
    differing,
    disk_failure,
    figures_of,
    launch_part,
    preflight,
)
from hf_efficient.records.account import PreflightFailure


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "out/.preflight"
    made.mkdir(parents=True)
    return made


def launched(fake, folder, code: str, limit: float = 60) -> PreflightFailure | None:
    return launch_part(PreflightLaunch(fake(code)), folder, "save", limit)[1]


TRAINING = "the training step on the longest batch"
KILLED = "notes('training'); os.kill(os.getpid(), 9)"
OUT_OF_MEMORY = """
notes('training', 0, kind='fault', message='Connection closed by peer')
notes('training', 1, kind='memory', message='out of memory')
time.sleep(60)  # nobody waits for the one that waits
"""
LOST = """
notes('training', 0, kind='fault', message='RuntimeError: [gloo/pair.cc:537] Read error: Connection reset by peer')
notes('training', 1)
print('  traceback : Signal 9 (SIGKILL) received by PID 2252')
raise SystemExit(1)
"""
SPEAKS = """
notes('loading')
print('it could not be read')
print('E1122 11:09:19 2536 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0')
print('=' * 60)
raise SystemExit(1)
"""


@pytest.mark.parametrize(
    ("code", "expected", "told"),
    [
        ("raise SystemExit(3)", {}, "a process ended in starting with exit code 3, and it said nothing"),
        (KILLED, {"kind": "killed", "stage": TRAINING}, "perhaps because host memory ran out"),
        (OUT_OF_MEMORY, {"kind": "memory", "stage": TRAINING, "rank": 1}, "out of memory"),
        (LOST, {"kind": "killed", "rank": 1}, ""),
        (LOST.replace("Read error: Connection reset by peer", "no such layer"), {"kind": "fault", "rank": 0}, ""),
        (SPEAKS, {}, "with exit code 1: it could not be read"),
    ],
)
def test_the_process_that_failed_is_named_and_not_the_one_that_lost_it(fake, folder, code, expected, told):
    began = time.monotonic()
    failure = launched(fake, folder, code)
    assert failure is not None
    assert {name: getattr(failure, name) for name in expected} == expected
    assert told in failure.message
    assert time.monotonic() - began < 30


def test_a_hang_is_ended_with_all_that_it_started(fake, folder):
    code = """
import subprocess
child = subprocess.Popen(["sleep", "300"])
(out / "child").write_text(str(child.pid))
notes('next'); notes('saving', 1)
time.sleep(300)
"""
    failure = launched(fake, folder, code, limit=1.5)
    assert (failure.kind, failure.rank) == ("hang", 1)
    assert "in saving a checkpoint (rank 1 is behind): it hangs" in failure.message
    assert "efficiency.preflight_minutes" in failure.message
    child = int((folder.parent / "child").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    failure = launched(fake, folder, "notes('training'); notes('training', 1); time.sleep(300)", limit=1.5)
    assert (failure.kind, failure.rank) == ("hang", None)  # nobody is behind where all wait
    assert f"in {TRAINING}: it hangs" in failure.message


WRITES = """
notes('building')
for _ in range(5):
    time.sleep(0.8)
    (out / "weights").write_bytes(bytes(2 << 20))
notes('done')
"""


@pytest.mark.parametrize(
    ("code", "limit"),
    [
        ("notes('done'); notes('done', 1)", 60),
        ("notes('data'); time.sleep(2.5); notes('done')", 1),  # reading data takes as long as it does
        (WRITES, 2.5),
    ],
)
def test_a_process_that_works_does_not_hang(fake, folder, code, limit):
    assert launched(fake, folder, code, limit=limit) is None


def test_stages_are_shown_as_they_come(fake, folder):
    code = "for stage in ('training', 'saving', 'done'):\n    notes(stage)\n    time.sleep(0.7)"
    shown: list[str] = []
    assert launch_part(PreflightLaunch(fake(code), on_stage=shown.append), folder, "save", 60)[1] is None
    assert shown == [TRAINING, "saving a checkpoint", "ending"]


def test_a_failure_leaves_its_log_and_nothing_else(fake, tmp_path, tiny_recipe):
    launch = PreflightLaunch(fake("print('what it wrote'); notes('loading', kind='load', message='Oh.')"))
    found = preflight(tiny_recipe(), launch)
    log = tmp_path / "out/efficiency/preflight.log"
    assert not found.passed
    assert found.failure.message == f"Oh. All that it wrote is in {log}."
    assert log.read_text() == "what it wrote\n"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["efficiency", "started"]
    assert sorted(path.name for path in log.parent.iterdir()) == ["preflight.json", "preflight.log"]
    assert (tmp_path / "out/started").read_text() == "save "  # what failed is not loaded


SAVED = {
    "saves": 12, "save_total_limit": 2, "keeps_best": False, "checkpoints_there": 0, "free_bytes": 1000,
    "checkpoint_bytes": 100, "model_bytes": 40, "merged_bytes": 0, "micro_batches": 2, "recipe_micro_batches": 8,
    "training_peak_bytes": 7, "save_seconds": 1.0, "fingerprint": "f",
}  # fmt: skip


def saved(rank: int = 0, **changes) -> RankNotes:
    notes = RankNotes(rank, 2, weights={"a": "1", "b": "2"}, optimizer={"a m": "3"}, losses=[9.0, 9.0, 0.5, 0.25])
    return dataclasses.replace(notes, **changes)


def loaded(rank: int = 0, **changes) -> RankNotes:
    return saved(rank, **{"losses": [0.5, 0.25], **changes})


def test_figures():
    ranks = [saved(figures=SAVED), saved(1, losses=[9, 9, 1, 0.25], figures={"training_peak_bytes": 9})]
    told = figures_of(ranks, [loaded(figures={"load_seconds": 2.0}), loaded(1, losses=[1, 0.25])])
    assert told["next_loss"] == told["next_loss_after_load"] == (0.75 + 1.25) / 2
    expected = {
        "training_peak_bytes": 9,  # the largest of the ranks
        "checkpoints_to_come": 3,  # 2 kept, and the new one beside them
        "needed_bytes": 3 * 100 + 40,
        "compared_tensors": 2 * 3,
        **{"world_size": 2, "load_seconds": 2.0, "save_seconds": 1.0},
    }
    assert {name: told[name] for name in expected} == expected
    assert "saves" not in told


def test_a_disk_that_is_just_large_enough_and_one_that_is_not():
    assert disk_failure(figures_of([saved(figures={**SAVED, "free_bytes": 340})])) is None
    failure = disk_failure(figures_of([saved(figures={**SAVED, "free_bytes": 339})]))
    assert failure.kind == "disk"
    assert "3 checkpoints of 100 B and the model in the end need 340 B, and 339 B are free" in failure.message
    assert "train.save_total_limit=1" in failure.message


def test_equal_notes_are_equal():
    assert differing([saved(), saved(1)], [loaded(), loaded(1)]) is None
    assert differing([saved()], [loaded(losses=[0.5, 0.2501])]) is None  # the order of a sum on a GPU
    nan = float("nan")
    assert differing([saved(losses=[nan] * 4)], [loaded(losses=[nan] * 2)]) is None


DIFFERENCES = {
    "1 of 2 tensors of the weights are not what was saved (rank 1: b)": {"weights": {"a": "1", "b": "9"}},
    "(rank 1: b)": {"weights": {"a": "1"}},
    "c (not saved)": {"weights": {"a": "1", "b": "2", "c": "0"}},
    "1 of 1 tensors of the optimizer's state": {"optimizer": {}},
    "the loss of the next step is 0.26 in place of 0.25 (rank 1)": {"losses": [0.5, 0.26]},
    "is nan in place of 0.25": {"losses": [0.5, float("nan")]},
    "rank 1 was not there": {"rank": 2},
}


def test_what_differs_is_named():
    for message, change in DIFFERENCES.items():
        failure = differing([saved(), saved(1)], [loaded(), dataclasses.replace(loaded(1), **change)])
        assert (failure.kind, failure.rank, message in failure.message) == ("differs", 1, True), failure


PROVES = """
if part != "run":
    notes("done", world_size=1, losses=[1.0], **({{"kind": "load", "message": "Oh."}} if part == {fails!r} else {{}}))
elif wish and {wants!r}:
    pathlib.Path(wish).write_text("the run is planned for 2 h 00 min")
"""


@pytest.fixture
def proves(fake, tiny_recipe):
    """A recipe, and a command whose run may want a check and whose checks may fail."""

    def made(*overrides, wants=True, fails=""):
        return tiny_recipe(*overrides), fake(PROVES.format(wants=wants, fails=fails))

    return made


def test_a_run_that_wants_a_check_gets_one_and_is_started_again(proves, tmp_path, capsys):
    assert run_checked(*proves(), {}, debug=False) == 0
    assert (tmp_path / "out/started").read_text().split() == ["run", "save", "load", "run"]
    told = capsys.readouterr().out
    assert "Preflight check first, because the run is planned for 2 h 00 min:" in told
    assert "passed in" in told


def test_true_is_checked_without_asking_and_once(proves, tmp_path):
    assert run_checked(*proves("efficiency.preflight=true"), {}, debug=False) == 0
    assert run_checked(*proves("efficiency.preflight=true", wants=False), {}, debug=False) == 0
    assert (tmp_path / "out/started").read_text().split() == ["save", "load", "run", "run"]


def test_a_run_that_would_fail_is_not_started(proves, tmp_path, capsys):
    with pytest.raises(PreflightError, match=r"preflight: Oh\."):
        run_checked(*proves(fails="load"), {}, debug=False)
    assert "failed in" in capsys.readouterr().out
    with pytest.raises(PreflightError):
        run_preflight(*proves(fails="save"), {}, debug=False)
    assert (tmp_path / "out/started").read_text().split() == ["run", "save", "load", "save"]
