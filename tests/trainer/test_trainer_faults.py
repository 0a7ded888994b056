"""Faults of the recording and of its folder: training continues as without, after one warning."""

import os
import shutil
import subprocess

import pytest
from tiny_training import assert_same_run, causal_trainer, records, train_causal
from transformers import TrainerCallback

from hf_efficient.accounting.account import account_of
from hf_efficient.recording.timeline import process_timeline
from hf_efficient.trainer import EfficientTrainer

MEMORY = "Memory is no longer counted by category, because of a fault; training continues."
COUNTED = "Silent failures are no longer counted, because of a fault; training continues."


def work_of(output):
    work = account_of(output / "efficiency").work
    return (work.model_flops is None, work.mfu, work.dtype, work.reason)


def loaders(output):
    return [one.loader for one in records(output)]


def diagnosis_of(output):
    return (output / "efficiency/diagnosis.json").exists()


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("broken", "said", "look", "left"),
    [
        ("recording.tokens._count", "", None, None),
        ("recording.loader.Taken.add", "", loaders, [None] * 3),
        (
            "recording.steps.log_figures",
            "The logs carry no figures any more, because of a fault; training continues.",
            None,
            None,
        ),
        ("recording.budget.BudgetWatch.look", "The budget is no longer watched, because of a fault.", None, None),
        slow("callbacks.memory.model_tensors", MEMORY, None, None),
        slow("callbacks.memory._positions", MEMORY, None, None),
        slow("recording.activations.model_tensors", MEMORY, None, None),
        slow("callbacks.run_facts.SilentFailures._fold_losses", COUNTED, None, None),
        slow("callbacks.run_facts._device", "How this run was set up", None, None),
        slow("reporting.run_data.diagnose_case", "could not be diagnosed", diagnosis_of, False),
        slow(
            "model.work.formula_of",
            "The FLOPs of the steps are not counted, because of a fault.",
            work_of,
            (True, None, None, "a fault while the model was looked at: ZeroDivisionError: planted"),
        ),
        (
            "model.work.peak_of",
            "",
            work_of,
            (False, None, "fp32", "a fault while the device was looked at: ZeroDivisionError: planted"),
        ),
    ],
)
def test_a_fault_is_one_warning(tiny_dir, tmp_path, monkeypatch, warned, plain_run, broken, said, look, left):
    def fails(*args, **kwargs):
        raise ZeroDivisionError("planted")

    process_timeline().release()  # an earlier test's run ends here, not under the fault
    monkeypatch.setattr(f"hf_efficient.{broken}", fails)
    monkeypatch.setattr("hf_efficient.callbacks.run_facts._MOST_LOSSES", 2)
    ours = train_causal(EfficientTrainer, tiny_dir, tmp_path, mixin={"budget": {"hours": 1}})
    assert_same_run(ours, plain_run(3))
    (warning,) = warned()
    assert said in warning
    assert (tmp_path / "efficiency/run.json").exists()
    if broken != "recording.tokens._count":
        assert [one.step for one in records(tmp_path)] == [1, 2, 3]
    if look is not None:
        assert look(tmp_path) == left


class Do(TrainerCallback):
    """Something to the folder, in the middle of the run."""

    def __init__(self, action, folder):
        self.action, self.folder = action, folder

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            self.action(self.folder)


def fill(folder):
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass


def make_read_only(folder):
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


def replace(folder):
    shutil.rmtree(folder / "efficiency")
    (folder / "efficiency").write_text("not a folder")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "said"), [(fill, "No space left on device"), (make_read_only, "Read-only file system")]
)
def test_a_disk_that_fills_up_or_becomes_read_only(tiny_dir, tmp_path, small_disk, warned, plain_run, action, said):
    mixin = {"efficiency_dir": small_disk / "efficiency"}
    callbacks = [Do(action, small_disk)]
    ours = train_causal(EfficientTrainer, tiny_dir, tmp_path, max_steps=4, callbacks=callbacks, mixin=mixin)
    ours.evaluate(ours.train_dataset[:4])
    assert_same_run(ours, plain_run(4))
    (warning,) = warned()
    assert said in warning


def test_a_disk_that_was_full_before(tiny_dir, tmp_path, warned, plain_run, small_disk, writers):
    mixin = {"efficiency_dir": small_disk / "efficiency"}
    ours = causal_trainer(EfficientTrainer, tiny_dir, tmp_path, max_steps=4, mixin=mixin)
    fill(small_disk)
    ours.train()
    assert_same_run(ours, plain_run(4))
    assert len(warned()) == 1
    assert writers() == []


@pytest.mark.parametrize("fault", ["never a folder", "vanishes", "locked"])
def test_a_folder_that_cannot_be_written_is_one_warning(tiny_dir, tmp_path, warned, plain_run, fault):
    folder = tmp_path / "ours"
    callbacks = [Do(replace, folder)] if fault == "vanishes" else []
    ours = causal_trainer(EfficientTrainer, tiny_dir, folder, max_steps=4, callbacks=callbacks)
    if fault == "never a folder":
        (folder / "efficiency").write_text("a file")
    if fault == "locked":
        folder.chmod(0o500)
        if os.access(folder, os.W_OK):
            pytest.skip("whoever runs this may write everywhere")
    ours.train()
    assert_same_run(ours, plain_run(4))
    assert len(warned()) == 1
