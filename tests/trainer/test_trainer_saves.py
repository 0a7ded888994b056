"""Checkpoints that are written while the training continues, at a cadence of their own, and to a second place."""

import os
import threading
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from tiny_training import causal_trainer, every, losses, stated, train_causal, trained_weights, valid_account
from transformers import TrainerCallback

from hf_efficient.callbacks.faults import FaultPolicy
from hf_efficient.callbacks.stop import SaveCadence
from hf_efficient.recording import checkpoints as recording
from hf_efficient.recording.checkpoints import CheckpointWriter, SavePolicy
from hf_efficient.reporting.run_rows import badput_words, fault_words
from hf_efficient.run_dir.checkpoints import checkpoints, fault_of
from hf_efficient.trainer import EfficientTrainer


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class SaveAgain(TrainerCallback):
    """Saves once more at once, and not in the background."""

    def on_save(self, args, state, control, **kwargs):
        trainer, folder = self.trainer, self.folder
        trainer._writer.settle()
        self.behind = contents(folder)
        trainer._saves, control.should_save = SavePolicy(), True
        trainer._save_checkpoint(trainer.model, None)
        trainer._saves, control.should_save = SavePolicy(background=True), False
        self.at_once = contents(folder)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_checkpoint_of_the_background_is_the_same_byte_for_byte(tiny_dir, tmp_path, method):
    again = SaveAgain()
    mixin = {"saves": SavePolicy(background=True)}
    changes = {"mixin": mixin, "callbacks": [again], "method": method, "max_steps": 2, **every(save=2)}
    again.trainer = causal_trainer(EfficientTrainer, tiny_dir, tmp_path / "out", **changes)
    again.folder = tmp_path / "out/checkpoint-2"
    again.trainer.train()
    assert len(again.at_once) > 8
    assert again.behind.keys() == again.at_once.keys()
    assert [name for name, held in again.at_once.items() if again.behind[name] != held] == []


class Held(TrainerCallback):
    """Keeps the writer of the background waiting until a step is done; notes the weights of each."""

    def __init__(self, until):
        self.go, self.until, self.weights = threading.Event(), until, {}

    def on_step_end(self, args, state, control, **kwargs):
        self.weights[state.global_step] = trained_weights(self.trainer)
        if state.global_step == self.until:
            assert [path.name for path in checkpoints(self.folder) if fault_of(path) is None] == []
            self.go.set()


def test_what_is_written_later_is_what_was_there(tiny_dir, tmp_path, monkeypatch):
    held, write = Held(until=3), CheckpointWriter._write
    held.folder = tmp_path / "out"

    def late(*args):
        assert held.go.wait(30)
        write(*args)

    monkeypatch.setattr(CheckpointWriter, "_write", late)
    changes = {"mixin": {"saves": SavePolicy(background=True)}, "callbacks": [held], "method": "full"}
    held.trainer = causal_trainer(EfficientTrainer, tiny_dir, held.folder, max_steps=3, **changes, **every(save=2))
    held.trainer.train()
    kept = load_file(held.folder / "checkpoint-2/model.safetensors")
    for name, weight in held.weights[2].items():
        assert name not in kept or torch.equal(weight, kept[name]), name
    assert any(not torch.equal(weight, held.weights[3][name]) for name, weight in held.weights[2].items())
    assert [fault_of(path, hashes=True) for path in checkpoints(held.folder)] == [None, None]
    whole = losses(held.trainer)
    resumed = train_causal(
        EfficientTrainer, tiny_dir, held.folder, resume=str(held.folder / "checkpoint-2"), method="full", max_steps=3
    )
    assert losses(resumed) == whole


@pytest.fixture
def full_disk(monkeypatch):
    """Hashes of the second checkpoint's files cannot be read."""
    read = recording.kept.read_files

    def reads(folder, *args, **kwargs):
        if folder.name == "checkpoint-2":
            raise OSError(28, "No space left on device")
        return read(folder, *args, **kwargs)

    monkeypatch.setattr(recording.kept, "read_files", reads)


@pytest.mark.parametrize("save_steps", [1, 2])
def test_a_failure_in_the_background_ends_the_run_at_the_next_save_or_its_end(
    tiny_dir, tmp_path, full_disk, save_steps
):
    saves = {"mixin": {"saves": SavePolicy(background=True)}, **every(save=save_steps)}
    with pytest.raises(OSError, match="No space left on device"):
        train_causal(EfficientTrainer, tiny_dir, tmp_path / "out", max_steps=4 - save_steps, **saves)
    left = [] if save_steps == 2 else ["checkpoint-1"]
    assert [path.name for path in checkpoints(tmp_path / "out")] == left


def test_a_run_that_may_continue_counts_it(tiny_dir, tmp_path, full_disk, caplog):
    mixin = {"saves": SavePolicy(background=True), "faults": FaultPolicy(on_save_error="continue")}
    out = tmp_path / "out"
    train_causal(EfficientTrainer, tiny_dir, out, mixin=mixin, max_steps=3, save_total_limit=2, **every(save=1))
    assert [path.name for path in checkpoints(out)] == ["checkpoint-1", "checkpoint-3"]
    assert "checkpoint-2 could not be saved: No space left on device. The run continues" in caplog.text
    assert fault_words(valid_account(out).faults) == "1 checkpoint not written"


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("small_disk", ["1700k"], indirect=True)
def test_a_disk_that_is_full_in_the_middle_of_a_save(tiny_dir, tmp_path, small_disk, monkeypatch, caplog, background):
    """A checkpoint of 1.1 MiB fits once. The room that is asked for before seems to be there, as where others write."""
    monkeypatch.setattr(recording.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**40))
    out = small_disk / "out"
    policies = {"saves": SavePolicy(background=background), "faults": FaultPolicy(on_save_error="continue")}
    mixin = {**policies, "efficiency_dir": tmp_path / "efficiency"}
    trainer = train_causal(EfficientTrainer, tiny_dir, out, method="full", mixin=mixin, max_steps=3, **every(save=1))
    assert trainer.state.global_step == 3
    assert [(path.name, fault_of(path, hashes=True)) for path in checkpoints(out)] == [("checkpoint-1", None)]
    assert caplog.text.count("The run continues; the checkpoints before it stay.") == 2
    assert os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize > 300_000  # nothing is left of the others


def test_the_mirror_holds_what_is_here_and_its_failures_stand_in_the_account(tiny_dir, tmp_path):
    (tmp_path / "blocked").write_text("a file where the mirror wants a folder")
    for name, policy in (("a", tmp_path / "away"), ("b", tmp_path / "blocked")):
        mixin = {"saves": SavePolicy(background=True, mirror=str(policy))}
        train_causal(EfficientTrainer, tiny_dir, tmp_path / name, mixin=mixin, max_steps=2, **every(save=2))
    assert contents(tmp_path / "away/checkpoint-2") == contents(tmp_path / "a/checkpoint-2")
    assert valid_account(tmp_path / "a").faults is None
    assert fault_words(valid_account(tmp_path / "b").faults) == "1 checkpoint not mirrored"
    assert stated(tmp_path / "b", "faults") == {"mirrors_failed": 1}


def test_the_cadence_saves_and_the_account_names_what_that_costs(tiny_dir, tmp_path, monkeypatch):
    monkeypatch.setattr("hf_efficient.callbacks.stop.FIRST_SAVE_SECONDS", 0.0)
    changes = {"callbacks": [SaveCadence(1e9)], "save_strategy": "steps", "save_steps": 0, "max_steps": 4}
    train_causal(EfficientTrainer, tiny_dir, tmp_path / "out", **changes)
    assert [path.name for path in checkpoints(tmp_path / "out")] == ["checkpoint-1", "checkpoint-4"]
    account = valid_account(tmp_path / "out")
    held = account.badput
    assert (held.saves, held.restart_seconds, held.again_seconds) == (2, 0.0, 0.0)
    assert held.checkpoint_seconds == account.time.phase_seconds["checkpointing"]
    assert held.undone_seconds == pytest.approx(account.time.training_seconds / 4)
    assert held.share == pytest.approx(held.checkpoint_seconds / account.time.wall_seconds, abs=1e-6)
    assert badput_words(held).startswith("2 checkpoints ")
