"""Checkpoints that are whole, and those that are not: 40 ways to damage one, and who passes over it."""

import errno
import json
import os
import shutil
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hf_efficient.errors import ModelError, OutputError
from hf_efficient.launch.merge import merge_run
from hf_efficient.launch.output import clear_output
from hf_efficient.launch.restart import agreed_output
from hf_efficient.launch.run import run_recipe
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recording import checkpoints as recording
from hf_efficient.recording.checkpoints import CheckpointWriter, Save
from hf_efficient.run_dir.checkpoints import MANIFEST, damage_of, discard, fault_of, files_in, prune, state_of
from tests.conftest import TINY_RECIPE, tiny_chats

STATE = ("adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")
SMALL = ("adapter_config.json", "tokenizer.json", "training_args.bin")
PICKLED = ("adapter_model.bin", "pytorch_model.bin", "optimizer.bin", "more/a.bin")
FOREIGN = ("model.safetensors", "global_step4/x.pt", "latest", *PICKLED)


def _truncate(checkpoint, name):
    os.truncate(checkpoint / name, (checkpoint / name).stat().st_size - 1)


def _flip(checkpoint, name):
    """One bit, in the middle."""
    content = bytearray((checkpoint / name).read_bytes())
    content[len(content) // 2] ^= 4
    (checkpoint / name).write_bytes(content)


def _lose(checkpoint, name):
    (checkpoint / name).unlink()


def _take_older(checkpoint, name):
    shutil.copy(checkpoint.with_name("checkpoint-2") / name, checkpoint / name)


def _add(checkpoint, name):
    (checkpoint / name).parent.mkdir(exist_ok=True)
    (checkpoint / name).write_bytes(b"x")


def _relist(checkpoint, name):
    """The manifest lists no files, another step, or files that are elsewhere."""
    held = json.loads((checkpoint / MANIFEST).read_text())
    held |= {"cut": {"files": None}, "step": {"step": 3}, "up": {"files": {"../x": {"bytes": 1, "sha256": ""}}}}[name]
    (checkpoint / MANIFEST).write_text(json.dumps(held))


DAMAGES = [
    *[(_truncate, name) for name in (*STATE, *SMALL, MANIFEST)],
    *[(_flip, name) for name in (*STATE, *SMALL)],
    *[(_lose, name) for name in (*STATE, *SMALL)],
    *[
        (_take_older, name)
        for name in ("adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json")
    ],
    (_take_older, "rng_state.pth"),
    *[(_add, name) for name in FOREIGN],
    *[(_relist, how) for how in ("cut", "step", "up")],
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_llama_dir):
    """A run of four steps with two checkpoints; damaged by nobody."""
    folder = tmp_path_factory.mktemp("trained")
    chats, path = folder / "chats.jsonl", folder / "tiny.yaml"
    chats.write_text("".join(json.dumps(row) + "\n" for row in tiny_chats()))
    path.write_text(TINY_RECIPE.format(model=tiny_llama_dir, chats=chats, output=folder / "out"))
    run_recipe(load_recipe(path, ["train.save_total_limit=2"]))
    return folder


@pytest.fixture
def run_dir(trained, tmp_path):
    """A copy, without its final weights."""
    shutil.copytree(trained / "out", tmp_path / "out")
    (tmp_path / "out/adapter_model.safetensors").unlink()
    return tmp_path / "out"


@pytest.fixture
def resumed(trained, run_dir):
    def decide(*overrides):
        given = [f"output_dir={run_dir}", "train.save_total_limit=2", "existing_output=resume", *overrides]
        alone = types.SimpleNamespace(world_size=1, process_index=0)
        return agreed_output(load_recipe(trained / "tiny.yaml", given), alone, {})

    return decide


def test_there_are_forty_damages():
    assert len(DAMAGES) == len(set(DAMAGES)) >= 40


def test_an_undamaged_checkpoint_counts(resumed, run_dir):
    plan = resumed()
    assert (plan.checkpoint, plan.remark) == (run_dir / "checkpoint-4", "")
    assert sorted(path.name for path in run_dir.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]
    held = json.loads((run_dir / "checkpoint-4" / MANIFEST).read_text())
    assert list(held["files"]) == files_in(run_dir / "checkpoint-4")
    (run_dir / "checkpoint-4/notes.txt").write_text("mine")
    (run_dir / "checkpoint-4/merged").mkdir()
    (run_dir / "checkpoint-4/merged/model.safetensors").write_text("of a merge")
    assert fault_of(run_dir / "checkpoint-4", hashes=True) is None


@pytest.mark.parametrize(("damage", "name"), DAMAGES, ids=lambda one: getattr(one, "__name__", one).strip("_"))
def test_a_damaged_checkpoint_is_passed_over(damage, name, resumed, run_dir):
    damage(run_dir / "checkpoint-4", name)
    plan = resumed()
    assert plan.checkpoint == run_dir / "checkpoint-2"
    assert plan.remark.startswith("checkpoint-4 is passed over: ")
    with pytest.raises(ModelError, match=r"checkpoint-4: .*Write one that is whole: .*checkpoint-2\.$"):
        merge_run(run_dir / "checkpoint-4")


def test_where_all_are_damaged_they_are_named(resumed, run_dir):
    _flip(run_dir / "checkpoint-2", "optimizer.pt")
    _lose(run_dir / "checkpoint-4", "rng_state.pth")
    said = (
        r"no checkpoint in .* is whole \(checkpoint-2: optimizer.pt is not as saved \(another hash\); "
        r"checkpoint-4: rng_state.pth is missing\)\. Copy one back, start again by --overwrite"
    )
    with pytest.raises(OutputError, match=said):
        resumed()
    assert (run_dir / "checkpoint-2/optimizer.pt").is_file()


@pytest.fixture
def mirrored(run_dir, tmp_path):
    """The run's checkpoints and its recipe, in a second place."""
    shutil.copytree(run_dir, tmp_path / "away", ignore=shutil.ignore_patterns("efficiency"))
    shutil.copy(run_dir / "efficiency/recipe.resolved.yaml", tmp_path / "away")
    return f"checkpoints.mirror={tmp_path / 'away'}"


def test_what_is_damaged_here_comes_from_the_mirror(resumed, run_dir, mirrored, tmp_path):
    assert resumed(mirrored).remark == ""
    _flip(run_dir / "checkpoint-4", "optimizer.pt")
    plan = resumed(mirrored)
    assert (plan.checkpoint, plan.remark) == (
        run_dir / "checkpoint-4",
        f"checkpoint-4 was fetched from {tmp_path / 'away'}",
    )
    assert fault_of(run_dir / "checkpoint-4", hashes=True) is None


def test_a_lost_run_comes_back_from_the_mirror(resumed, run_dir, mirrored):
    shutil.rmtree(run_dir)
    plan = resumed(mirrored)
    assert (plan.checkpoint, plan.continues) == (run_dir / "checkpoint-4", True)
    with pytest.raises(OutputError, match=r"cannot continue with another train\.seed"):
        resumed(mirrored, "train.seed=99")


def test_a_new_run_takes_no_mirror_of_another(resumed, run_dir, mirrored, tmp_path):
    with pytest.raises(OutputError, match=r"away holds checkpoint-4 of another run\. Continue it by --resume, remove"):
        resumed(mirrored, f"output_dir={tmp_path / 'new'}", "existing_output=refuse")
    plan = resumed(mirrored, "existing_output=overwrite")
    assert plan.replaces
    assert (tmp_path / "away/checkpoint-4").is_dir()  # deciding changes nothing
    clear_output(plan, str(tmp_path / "away"))
    assert not list((tmp_path / "away").glob("checkpoint-*"))


def test_half_a_first_save_is_no_loss(resumed, run_dir):
    discard(run_dir / "checkpoint-2")
    _relist(run_dir / "checkpoint-4", "cut")
    plan = resumed()
    assert (plan.checkpoint, plan.replaces, plan.keeps_records) == (None, True, True)
    cut = "checkpoint-4 is passed over: its save did not end: manifest.json lists no files"
    assert plan.remark == f"{cut}; there is no checkpoint yet: it starts again, and what it has spent so far counts"


def test_a_run_from_before_manifests_resumes_with_a_word(resumed, run_dir):
    (run_dir / "checkpoint-4" / MANIFEST).unlink()
    plan = resumed()
    assert plan.checkpoint == run_dir / "checkpoint-4"
    assert plan.remark == ("checkpoint-4 has no manifest.json: its files could not be compared with what was saved")


def test_the_list(run_dir):
    state = state_of(run_dir / "checkpoint-4", hashes=True)
    logged = json.loads((run_dir / "checkpoint-4/trainer_state.json").read_text())["log_history"]
    size = sum((run_dir / "checkpoint-4" / name).stat().st_size for name in files_in(run_dir / "checkpoint-4"))
    assert state.to_dict() == {
        "name": "checkpoint-4", "step": 4, "loss": [one["loss"] for one in logged if "loss" in one][-1], "bytes": size,
        "valid": True, "fault": None, "has_manifest": True,
    }  # fmt: skip


def test_states_are_no_code(run_dir):
    """What a start unpickles needs no more than torch's safe types."""
    for name in ("optimizer.pt", "scheduler.pt"):
        assert torch.load(run_dir / "checkpoint-4" / name, weights_only=True)


def a_save(folder, content="x", **options) -> Save:
    return Save(folder, lambda: (folder / "trainer_state.json").write_text(content), **options)


def test_old_ones_go_only_once_the_new_one_is_whole(tmp_path, monkeypatch):
    writer, gone = CheckpointWriter(0, 1), []

    def watched(path):
        newer = [one for one in tmp_path.glob("checkpoint-*") if int(one.name[11:]) > int(path.name[11:])]
        gone.append((path.name, [damage_of(one, hashes=True) for one in newer]))
        discard(path)

    monkeypatch.setattr("hf_efficient.run_dir.checkpoints.discard", watched)
    for step in (1, 2, 3):
        assert writer.save(a_save(tmp_path / f"checkpoint-{step}", keep=1))
    assert gone == [("checkpoint-1", [None]), ("checkpoint-2", [None])]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]


def test_the_best_one_stays_and_half_ones_go(tmp_path):
    writer = CheckpointWriter(0, 1)
    for step in (1, 2, 4):
        writer.save(a_save(tmp_path / f"checkpoint-{step}"))
    (tmp_path / "checkpoint-3").mkdir()
    prune(tmp_path, 2, tmp_path / "checkpoint-4", best="checkpoint-1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-4"]


@pytest.fixture
def full_disk(tmp_path, monkeypatch):
    """The first checkpoint is there, and there is no room for the second."""
    writer = CheckpointWriter(0, 1)
    writer.save(a_save(tmp_path / "checkpoint-1", keep=1))
    monkeypatch.setattr(recording.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=0))
    return writer


@pytest.mark.parametrize("may_fail", [False, True])
def test_room_is_asked_for_before_a_save_and_the_last_good_one_stays(full_disk, tmp_path, may_fail, caplog):
    save = a_save(tmp_path / "checkpoint-2", keep=1)
    if may_fail:
        assert not full_disk.save(save, may_fail=True)
        assert "checkpoint-2 could not be saved: it needs 1 B, and 0 B are free. The run continues" in caplog.text
    else:
        with pytest.raises(OSError, match="it needs 1 B, and 0 B are free"):
            full_disk.save(save)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]
    assert damage_of(tmp_path / "checkpoint-1", hashes=True) is None


@pytest.mark.parametrize("said", ["PytorchStreamWriter failed writing file data/1", "basic_ios::clear: iostream error"])
def test_a_save_that_fails_in_the_middle_leaves_no_half(tmp_path, said):
    def fails():
        (tmp_path / "checkpoint-2/optimizer.pt").write_bytes(b"half")
        raise RuntimeError(said)

    writer = CheckpointWriter(0, 1)
    writer.save(a_save(tmp_path / "checkpoint-1", keep=1))
    assert not writer.save(Save(tmp_path / "checkpoint-2", fails, keep=1), may_fail=True)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]
    with pytest.raises(ZeroDivisionError):  # no matter of the disk
        writer.save(Save(tmp_path / "checkpoint-3", lambda: print(1 / 0)), may_fail=True)


def test_a_full_disk_keeps_nobody_from_removing_a_checkpoint(tmp_path, monkeypatch):
    writer = CheckpointWriter(0, 1)
    writer.save(a_save(tmp_path / "checkpoint-1"))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("hf_efficient.run_dir.checkpoints._write", full)
    discard(tmp_path / "checkpoint-1")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="No space left"):
        writer.save(a_save(tmp_path / "checkpoint-2"))
    assert [path.name for path in tmp_path.glob("*/*")] == []


@pytest.fixture
def on_two_ranks(monkeypatch):
    """Runs an action with the writers of two ranks, in threads that exchange what they gather."""
    barrier, gathered, local = threading.Barrier(2, timeout=60), [None, None], threading.local()

    def gather(into, mine):
        gathered[local.rank] = mine
        barrier.wait()
        into[:] = gathered
        barrier.wait()

    monkeypatch.setattr(recording.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(recording.dist, "all_gather_object", gather)

    def run(action):
        def of_rank(rank):
            local.rank = rank
            try:
                return action(rank, CheckpointWriter(rank, 2))
            except OSError as error:
                return str(error)

        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(of_rank, (0, 1)))

    return run


def test_all_ranks_write_and_one_manifest_lists_it_all(on_two_ranks, tmp_path):
    folder = tmp_path / "checkpoint-1"

    def save(rank, writer):
        time.sleep(0.05 * rank)  # the manifest waits for the slower one
        return writer.save(Save(folder, lambda: (folder / f"rng_state_{rank}.pth").write_bytes(bytes(rank)), keep=1))

    assert on_two_ranks(save) == [True, True]
    assert list(json.loads((folder / MANIFEST).read_text())["files"]) == ["rng_state_0.pth", "rng_state_1.pth"]
    assert damage_of(folder, hashes=True) is None


@pytest.mark.parametrize("fails", [False, True])
def test_rank_0_alone_writes_in_the_background_and_all_learn_of_its_end(on_two_ranks, tmp_path, fails):
    folder, rest = tmp_path / "checkpoint-1", threading.Event()

    def late(path):
        assert rest.wait(60)
        if fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        path.write_text("later")

    def save(rank, writer):
        def write():
            (folder / f"rng_state_{rank}.pth").write_bytes(bytes(rank))
            if rank == 0:
                torch.save({"x": torch.ones(3)}, folder / "optimizer.pt")

        assert writer.save(Save(folder, write, keep=1, background=True))
        if rank == 0:
            assert damage_of(folder) == "its save did not end: manifest.json lists no files"
            rest.set()
        writer.settle()
        return True

    torch_save, torch.save = torch.save, lambda held, path: late(path)
    try:
        said = ["[Errno 28] No space left on device", "[Errno 28] rank 0: No space left on device"]
        assert on_two_ranks(save) == (said if fails else [True, True])
    finally:
        torch.save = torch_save
    if fails:
        assert not folder.exists()
    else:
        files = json.loads((folder / MANIFEST).read_text())["files"]
        assert list(files) == ["optimizer.pt", "rng_state_0.pth", "rng_state_1.pth"]
        assert (damage_of(folder, hashes=True), (folder / "optimizer.pt").read_text()) == (None, "later")


@pytest.mark.parametrize("fails", [False, True])
def test_a_distributed_checkpoint_is_written_in_the_background_too(tmp_path, monkeypatch, fails):
    """What it holds is copied; it is written in a process group of its own, and the manifest after it."""
    from torch.distributed import checkpoint as together

    folder, rest, weights = tmp_path / "checkpoint-1", threading.Event(), torch.ones(1)

    def write(state_dict, *, storage_writer, process_group):
        assert (rest.wait(60), process_group) == (True, "gloo")
        if fails:
            failure = BaseException("CheckpointException")
            failure.failures = {1: (OSError(errno.EIO, "Input/output error"), None)}
            raise failure
        (folder / storage_writer).write_text(str(state_dict["model"].item()))

    monkeypatch.setattr(recording.dist, "new_group", lambda backend: backend)
    monkeypatch.setattr(together, "save", write)
    writer, save = CheckpointWriter(0, 1), lambda: together.save({"model": weights}, storage_writer="0.distcp")
    assert writer.save(Save(folder, save, several_writers=True, keep=1, background=True))
    weights += 1
    assert damage_of(folder) == "its save did not end: manifest.json lists no files"
    rest.set()
    if fails:
        with pytest.raises(OSError, match="Input/output error"):
            writer.settle()
        assert not folder.exists()
    else:
        writer.settle()
        assert ((folder / "0.distcp").read_text(), damage_of(folder, hashes=True)) == ("1.0", None)


@pytest.mark.parametrize("may_fail", [False, True])
def test_one_rank_that_cannot_write_fails_the_save_of_all(on_two_ranks, tmp_path, may_fail):
    def full():
        raise OSError(errno.ENOSPC, "No space left on device")

    def save(rank, writer):
        return writer.save(Save(tmp_path / "checkpoint-1", full if rank else dict), may_fail=may_fail)

    said = ["[Errno 28] rank 1: No space left on device", "[Errno 28] No space left on device"]
    assert on_two_ranks(save) == ([False, False] if may_fail else said)
    assert not (tmp_path / "checkpoint-1").exists()
