"""A storage that fails while a run saves: write errors at random, and one that is no longer there."""

import errno
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from launched_runs import train, written

from hf_efficient.accounting.account import load_run
from hf_efficient.run_dir.checkpoints import checkpoints, fault_of
from tests.conftest import logged_values as losses

pytestmark = pytest.mark.slow

FAILING = Path(__file__).with_name("failing.c")
ALONE = ("distributed.processes=1", "distributed.max_restarts=0", "train.save_steps=2", "train.save_total_limit=2")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny_llama_dir):
    """What the same run gives where everything can be written."""
    folder = tmp_path_factory.mktemp("whole")
    done = train(written(folder, tiny_llama_dir), *ALONE)
    assert done.returncode == 0, done.stderr
    return losses(folder / "out")


@pytest.fixture
def recipe(tmp_path, tiny_llama_dir):
    return written(tmp_path, tiny_llama_dir)


def all_whole(output: Path) -> list[int]:
    """Steps of the checkpoints; none of them may be damaged, or half."""
    found = checkpoints(output)
    assert [fault_of(path, hashes=True) for path in found] == [None] * len(found)
    return [int(path.name.removeprefix("checkpoint-")) for path in found]


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    """The environment of processes whose writes can be made to fail."""
    library = tmp_path_factory.mktemp("failing") / "failing.so"
    compiler = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(FAILING), "-l:libfiu.so.0", "-ldl"]
    if shutil.which("cc") is None or subprocess.run(compiler, capture_output=True).returncode:
        pytest.skip("a C compiler and libfiu (Debian's fiu-utils) are needed")
    return {"LD_PRELOAD": str(library)}


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_writes_that_fail_at_random_cost_their_checkpoint_alone(recipe, tmp_path, whole, failing, number, background):
    words = (*ALONE, "faults.on_save_error=continue", f"checkpoints.background={background}")
    done = train(recipe, *words, **failing, PLANTED_WRITES=f"{number}:0.02")
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "out") == whole
    failed = done.stderr.count(" could not be saved: ")
    assert 0 < failed < 20
    assert load_run(tmp_path / "out").faults.saves_failed == failed
    assert all_whole(tmp_path / "out")


def test_a_run_that_stops_by_a_failed_write_resumes_from_the_last_good_checkpoint(recipe, tmp_path, whole, failing):
    done = train(recipe, *ALONE, **failing, PLANTED_WRITES=f"{errno.ENOSPC}:0.02")
    assert done.returncode in (1, 2), done.stderr  # torch does not always say that there was no room
    assert re.search("error: output_dir: (no room left for .*|.* could not be written: )", done.stderr)
    assert "Traceback" not in done.stderr
    all_whole(tmp_path / "out")
    resumed = train(recipe, *ALONE, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert losses(tmp_path / "out") == whole


def mounted(folder: Path, away: Path) -> list[str]:
    """What starts a command in a namespace of its own, where ``folder`` is a mount of ``away``; below, it is empty and
    read-only."""
    script = 'mount -t tmpfs -o ro none "$0" && mount --bind "$1" "$0" && shift && exec "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, str(folder), str(away)]


def test_a_storage_that_vanishes_ends_the_run_and_keeps_its_checkpoints(recipe, tmp_path, whole):
    disk, away = tmp_path / "disk", tmp_path / "away"
    disk.mkdir()
    away.mkdir()
    if subprocess.run([*mounted(disk, away), "true"], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here, not even in a namespace")
    words = (*ALONE, f"output_dir={disk / 'out'}")
    gone = {"PLANTED": "0:20:1:unmount", "PLANTED_DISK": str(disk)}
    done = train(recipe, *words, before=mounted(disk, away), **gone)
    assert done.returncode == 2, done.stderr
    assert f"error: output_dir: {disk / 'out'} can no longer be written: [Errno 30]" in done.stderr
    assert "Traceback" not in done.stderr
    assert 18 in all_whole(away / "out")
    resumed = train(recipe, *words, "--resume", before=mounted(disk, away))
    assert resumed.returncode == 0, resumed.stderr
    assert losses(away / "out") == whole
