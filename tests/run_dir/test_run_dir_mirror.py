"""Checkpoints in a second place: copied, thinned, fetched where they are missing or damaged."""

import logging
import shutil
import threading
import uuid

import pytest

from hf_efficient.errors import OutputError
from hf_efficient.recording.checkpoints import CheckpointWriter, Save
from hf_efficient.run_dir import mirror as module
from hf_efficient.run_dir.checkpoints import damage_of
from hf_efficient.run_dir.mirror import Mirror, newer_in_mirror


@pytest.fixture(params=["folder", "memory"])
def url(request, tmp_path):
    return str(tmp_path / "away/run") if request.param == "folder" else f"memory://{uuid.uuid4()}/run"


@pytest.fixture(autouse=True)
def _whole_by_its_manifest(monkeypatch):
    """The checkpoints here hold two files that say nothing."""
    monkeypatch.setattr(module, "fault_of", damage_of)


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    (folder / "efficiency").mkdir(parents=True)
    (folder / "efficiency/recipe.resolved.yaml").write_text("recipe: {}\n")
    return folder


def saved(run, *steps, mirror=None, keep=None, best=""):
    """By a writer that copies to the mirror; waits for all copies."""
    writer = CheckpointWriter(0, 1, mirror)
    for step in steps:
        folder = run / f"checkpoint-{step}"

        def write(folder=folder):
            (folder / "parts").mkdir()
            (folder / "parts/weights.bin").write_bytes(folder.name.encode() * 1000)
            (folder / "trainer_state.json").write_text(folder.name)

        assert writer.save(Save(folder, write, keep=keep, best=lambda: best))
        if mirror is not None:
            assert writer.mirror.wait(10) == 0


def test_a_lost_run_comes_back(run, url, tmp_path):
    saved(run, 5, 10, mirror=url)
    assert Mirror(url).steps() == [5, 10]
    shutil.rmtree(run)
    run.mkdir()
    assert newer_in_mirror(url, run) == run / "checkpoint-10"
    assert damage_of(run / "checkpoint-10", hashes=True) is None
    assert (run / "checkpoint-10/parts/weights.bin").read_bytes() == b"checkpoint-10" * 1000
    assert (run / "efficiency/recipe.resolved.yaml").read_text() == "recipe: {}\n"
    assert sorted(path.name for path in run.iterdir()) == ["checkpoint-10", "efficiency"]


def test_what_is_whole_here_and_as_new_stays(run, url):
    saved(run, 5, 10, mirror=url)
    assert newer_in_mirror(url, run) is None
    path = run / "checkpoint-10/parts/weights.bin"
    path.write_bytes(b"C" + path.read_bytes()[1:])
    assert newer_in_mirror(url, run) == run / "checkpoint-10"
    assert damage_of(run / "checkpoint-10", hashes=True) is None
    saved(run, 15)
    assert newer_in_mirror(url, run) is None


def test_half_a_copy_and_a_damaged_one_are_none(run, tmp_path, caplog):
    away = tmp_path / "away"
    saved(run, 5, 10, 15, mirror=str(away))
    shutil.rmtree(run)
    run.mkdir()
    (away / "checkpoint-15/manifest.json").unlink()
    (away / "checkpoint-10/trainer_state.json").write_text("checkpoint-1?")
    assert newer_in_mirror(str(away), run) == run / "checkpoint-5"
    assert "checkpoint-10 is passed over: trainer_state.json is not as saved (another hash)" in caplog.text
    assert [path.name for path in run.glob("*checkpoint*")] == ["checkpoint-5"]


def test_as_many_stay_as_here_with_the_best_one_and_no_other_future(run, url):
    saved(run, 1, 2, 3, 4, mirror=url, keep=2, best="checkpoint-1")
    assert Mirror(url).steps() == [1, 4]
    saved(run, 2, mirror=url)  # resumed from before 4
    assert Mirror(url).steps() == [1, 2]


def test_a_copy_under_way_is_not_removed_here_and_the_newest_comes_next(run, url, monkeypatch):
    begun, go, copied = threading.Event(), threading.Event(), []

    def put(mirror, checkpoint):
        begun.set()
        assert go.wait(10)
        copied.append((checkpoint.name, (checkpoint / "trainer_state.json").read_text()))

    monkeypatch.setattr(Mirror, "put", put)
    mirror = Mirror(url)
    saved(run, 1)
    mirror.add(run / "checkpoint-1", 1, "")
    assert begun.wait(10)
    writer = CheckpointWriter(0, 1)
    writer.mirror = mirror
    for step in (2, 3):
        folder = run / f"checkpoint-{step}"
        writer.save(Save(folder, lambda folder=folder: (folder / "trainer_state.json").write_text(folder.name), keep=1))
    assert (run / "checkpoint-1").is_dir()
    go.set()
    assert mirror.wait(10) == 0
    assert copied == [("checkpoint-1", "checkpoint-1"), ("checkpoint-3", "checkpoint-3")]


def test_a_copy_that_fails_is_one_warning_and_counted(run, tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Mirror, "put", full)
    mirror = Mirror(str(tmp_path / "away"))
    saved(run, 1, 2)
    for step in (1, 2):
        mirror.add(run / f"checkpoint-{step}", None, "")
        mirror.wait(10)
    assert mirror.failed == 2
    (record,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert "checkpoints.mirror: checkpoint-1 was not copied" in record.message
    assert "No space left on device. The run continues, and tries the later ones." in record.message


def test_the_end_waits_no_longer_than_its_bound(run, tmp_path, monkeypatch, caplog):
    stuck = threading.Event()
    monkeypatch.setattr(Mirror, "put", lambda *_: stuck.wait(10))
    mirror = Mirror(str(tmp_path / "away"))
    saved(run, 1)
    mirror.add(run / "checkpoint-1", None, "")
    assert mirror.wait(0.05) == 1
    assert "it was not there 0 s after the training" in caplog.text
    stuck.set()


def test_a_mirror_that_cannot_be_reached(run, caplog):
    said = r"^checkpoints\.mirror: nosuch://x: Protocol not known: nosuch\. Make it readable"
    with pytest.raises(OutputError, match=said):  # nothing is here
        newer_in_mirror("nosuch://x", run)
    saved(run, 5)
    assert newer_in_mirror("nosuch://x", run) is None
    assert "The run resumes from checkpoint-5, which is here. checkpoints.mirror: nosuch://x" in caplog.text
