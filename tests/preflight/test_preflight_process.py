"""Whole preflight checks of a tiny model, and every kind of failure in one, provoked where it happens."""

import errno
import json
import shutil
import subprocess
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from safetensors.numpy import save_file

from hf_efficient.errors import HfEfficientError
from hf_efficient.launch.build import RecipeTrainer
from hf_efficient.launch.run import run_recipe
from hf_efficient.preflight import launches as parent
from hf_efficient.preflight.launches import PreflightLaunch, failure_of, log_of, notes_of
from hf_efficient.preflight.process import check_part, saved_fault
from hf_efficient.records.account import Preflight
from tests.conftest import logged_values


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch, tiny_recipe) -> None:
    """A launch takes seconds of imports; its processes' work is done here."""

    def launch_part(launch: PreflightLaunch, folder: Path, part, limit_seconds: float):
        log_of(folder, part).touch()
        code = 0
        try:
            check_part(tiny_recipe(*launch.command), part)
        except Exception as error:  # noqa: BLE001  as the process would end
            log_of(folder, part).write_text(repr(error))
            code = 1
        return notes_of(folder, part), failure_of(notes_of(folder, part), code, None, log_of(folder, part))

    monkeypatch.setattr(parent, "launch_part", launch_part)


OTHER_STATE = "tensors of the optimizer's state are not what was saved"
SHORT = "evaluate.generate.max_new_tokens=3"


@pytest.fixture
def proven(tiny_recipe):
    return lambda *overrides: parent.preflight(tiny_recipe(*overrides), PreflightLaunch(overrides))


def check_failed(found: Preflight, kind: str, *parts: str) -> None:
    assert not found.passed
    assert found.failure is not None
    assert found.failure.kind == kind
    assert [part for part in parts if part not in found.failure.message] == [], found.failure.message


def raising(error: Exception):
    def broken(*args, **kwargs):
        raise error

    return broken


@pytest.mark.parametrize(
    "overrides",
    [
        ["train.gradient_accumulation_steps=5", "train.warmup_steps=2"],
        pytest.param(["adapter={method: full}", "train.packing=true", "train.optim=adafactor"], marks=pytest.mark.slow),
        pytest.param(["adapter.method=qlora", "evaluate.metrics=[exact_match]", SHORT], marks=pytest.mark.slow),
    ],
)
def test_a_recipe_that_gets_through(proven, overrides, tmp_path):
    found = proven(*overrides)
    assert found.failure is None
    assert found.passed
    assert found.micro_batches == (2 if "train.gradient_accumulation_steps=5" in overrides else 1)
    assert found.next_loss == found.next_loss_after_load
    assert found.compared_tensors > 14
    assert found.checkpoints_to_come == 2
    assert found.needed_bytes == 2 * found.checkpoint_bytes + found.model_bytes
    assert [path.name for path in (tmp_path / "out").iterdir() if path.name != ".hf_efficient.lock"] == ["efficiency"]
    assert json.loads((tmp_path / "out/efficiency/preflight.json").read_text())["passed"] is True


def test_completions_of_the_longest_prompts(proven, tmp_path):
    """GRPO, whose loss of the next step is that of other completions' rewards, all 0 here."""
    path = tmp_path / "prompts.jsonl"
    rows = [{"question": f"{i} + {i}{'?' * i}", "answer": str(2 * i)} for i in range(1, 9)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    own = ["objective=grpo", f"data.train=[{{path: {path}}}]", "rewards=[number_match]", "data.eval_fraction=null"]
    own += ["evaluate.metrics=[]", "adapter.dropout=0", "train.gradient_checkpointing=false", "train.max_length=null"]
    own += ["train.num_generations=2", "train.max_completion_length=4", "train.eval_strategy=no"]
    found = proven(*own)
    assert (found.failure, found.passed) == (None, True)
    assert found.compared_tensors > 14


@pytest.mark.slow
def test_a_run_after_its_proof_is_the_run_without(proven, tiny_recipe, tmp_path):
    run_recipe(tiny_recipe(f"output_dir={tmp_path / 'alone'}"))
    assert proven().passed
    run_recipe(tiny_recipe())
    assert len(logged_values(tmp_path / "alone")) == 4
    assert logged_values(tmp_path / "out") == logged_values(tmp_path / "alone")


def test_a_batch_that_only_the_longest_rows_make_too_large(proven, tiny_recipe, monkeypatch):
    step = RecipeTrainer.training_step

    def limited(self, model, inputs, *args, **kwargs):
        if inputs["input_ids"].shape[1] > 70:  # as tokens of a row; the longest here has 75
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return step(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(RecipeTrainer, "training_step", limited)
    said = (
        "out of memory in the training step on the longest batch (2 x 75 tokens): CUDA out of memory. Tried to "
        "allocate 2.00 GiB. Write one of: train.per_device_train_batch_size=1 train.gradient_accumulation_steps=2; "
        "train.gradient_checkpointing=true; a smaller train.max_length (is 96); adapter.method=qlora; "
    )
    check_failed(proven("train.gradient_checkpointing=false"), "memory", said)


@pytest.mark.slow
def test_memory_of_the_evaluation(proven, monkeypatch):
    monkeypatch.setattr(RecipeTrainer, "prediction_step", raising(torch.OutOfMemoryError("CUDA out of memory.")))
    fewer = "train.per_device_eval_batch_size=4; fewer evaluate.metrics (are perplexity)"
    check_failed(proven(), "memory", "in the evaluation of the longest batch", fewer)


FULL = OSError(errno.ENOSPC, "No space left on device")
NO_KEY = RuntimeError("rank 3 has no such key")
REMEDIES = [(FULL, "make room, or write an output_dir=... on another disk"), (NO_KEY, "Write another distributed.")]


@pytest.mark.parametrize(("error", "remedy"), REMEDIES)
def test_a_checkpoint_that_cannot_be_saved(proven, monkeypatch, error, remedy):
    monkeypatch.setattr(RecipeTrainer, "_save_optimizer_and_scheduler", raising(error))
    check_failed(proven(), "save", "saving a checkpoint: ", remedy)


@pytest.mark.slow
def test_a_disk_that_is_full(proven, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a disk of 96 KiB can only be mounted by root")
    try:
        found = proven(f"output_dir={disk}")
        left = [path.name for path in disk.iterdir() if path.name != ".hf_efficient.lock"]
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
    check_failed(found, "save", f"No room is left for {disk}: make room")
    assert left == ["efficiency"]


@pytest.mark.slow
def test_a_model_that_is_not_there_in_the_end(proven, monkeypatch):
    save = RecipeTrainer.save_model
    only_checkpoints = lambda self, *args, **kw: save(self, *args, **kw) if args else None  # noqa: E731
    monkeypatch.setattr(RecipeTrainer, "save_model", only_checkpoints)
    check_failed(proven(), "save", "saving the model as at the end of the run: RuntimeError: no weights were written")


def test_tensors_without_numbers(tmp_path):
    import numpy as np

    save_file({"a": np.ones(3), "b": np.ones((0, 4))}, tmp_path / "model.safetensors")
    assert saved_fault(tmp_path, 3) == "model.safetensors holds b without a single number"
    save_file({"a": np.ones(3)}, tmp_path / "model.safetensors")
    assert saved_fault(tmp_path, 3) is None
    assert saved_fault(tmp_path, 1000) == "of 1,000 trained numbers only 3 were written"


def test_a_checkpoint_that_cannot_be_loaded(proven, monkeypatch):
    broken = raising(ValueError("Parameter groups do not match"))
    monkeypatch.setattr(RecipeTrainer, "_load_optimizer_and_scheduler", broken)
    monkeypatch.setattr(RecipeTrainer, "_load_from_checkpoint", broken)
    said = "loading the checkpoint back: ValueError: Parameter groups do not match. The checkpoint"
    check_failed(proven(), "load", said)


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("_load_from_checkpoint", "tensors of the weights are not what was saved (rank 0: base_model"),
        pytest.param("_load_optimizer_and_scheduler", OTHER_STATE, marks=pytest.mark.slow),
        ("_load_rng_state", "though weights and optimizer are equal: the frozen weights or the random state"),
    ],
)
def test_what_is_not_loaded_is_named(proven, monkeypatch, method, told):
    monkeypatch.setattr(RecipeTrainer, method, lambda self, *args, **kwargs: None)
    check_failed(proven("adapter.dropout=0.5"), "differs", told)


def test_a_disk_without_room_for_what_is_to_come(proven, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6 - 1000, 1000))
    check_failed(proven(), "disk", "2 checkpoints of ", "and 1000 B are free")


def test_what_the_run_would_refuse_is_refused(tiny_recipe, tmp_path):
    overrides = ["data.train.0.path=nothing.jsonl"]
    told: list[tuple[str, str]] = []
    with pytest.raises(HfEfficientError, match=r"nothing\.jsonl") as raised:
        parent.check_run(tiny_recipe(*overrides), PreflightLaunch(overrides), lambda *line: told.append(line))
    assert raised.value.exit_code == 2
    assert told[-1][1].endswith("in reading the data")


@pytest.mark.slow
def test_a_run_that_never_evaluates_and_saves_no_optimizer_is_checked_without(proven):
    found = proven("evaluate.at_end=false", "evaluate.metrics=[]", "train.save_only_model=true")
    assert found.passed
    assert (found.evaluation_rows, found.load_seconds) == (None, None)
    assert proven("data.max_eval_examples=3").evaluation_rows == 3  # a batch of 8 would be larger than any that comes
