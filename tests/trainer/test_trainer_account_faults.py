"""Real faults of the folder that the account goes to: training goes on, one warning."""

from __future__ import annotations

import logging
import os
import subprocess
from pathlib import Path

import pytest
from tiny_training import assert_same_run, causal_trainer
from transformers import Trainer, TrainerCallback

from hf_efficient.trainer import EfficientTrainer


def fill(folder: Path) -> None:
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass


class Do(TrainerCallback):
    def __init__(self, action):
        self.action = action

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            self.action()


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.name.startswith("hf_efficient")]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_disk_that_fills_up_or_becomes_read_only(tiny_dir, tmp_path, small_disk, caplog, fault):
    plain = causal_trainer(Trainer, tiny_dir, tmp_path / "plain", max_steps=4)
    plain.train()

    def break_it():
        if fault == "full":
            fill(small_disk)
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)

    ours = causal_trainer(
        EfficientTrainer,
        tiny_dir,
        tmp_path / "ours",
        max_steps=4,
        callbacks=[Do(break_it)],
        mixin={"efficiency_dir": small_disk / "efficiency"},
    )
    with caplog.at_level(logging.WARNING, logger="hf_efficient"):
        ours.train()
        ours.evaluate(ours.train_dataset[:4])
    assert_same_run(ours, plain)
    assert len(warnings_of(caplog)) == 1
    reason = "No space left on device" if fault == "full" else "Read-only file system"
    assert reason in warnings_of(caplog)[0]


def test_a_folder_that_may_not_be_written(tiny_dir, tmp_path, caplog):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    if os.access(folder, os.W_OK):
        pytest.skip("whoever runs this may write everywhere")
    trainer = causal_trainer(EfficientTrainer, tiny_dir, tmp_path, mixin={"efficiency_dir": folder / "efficiency"})
    with caplog.at_level(logging.WARNING, logger="hf_efficient"):
        trainer.train()
    assert len(warnings_of(caplog)) == 1
