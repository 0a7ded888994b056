"""A preflight check of a Trainer that never saw a recipe, which stays as it is."""

from collections import namedtuple

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

import hf_efficient
from hf_efficient.errors import PreflightError, SetupError

ROWS = [list(range(3, 3 + tokens)) for tokens in (5, 30, 9, 12)]


def collate(rows):
    longest = max(len(one["input_ids"]) for one in rows)
    ids = torch.tensor([[*one["input_ids"], *[0] * (longest - len(one["input_ids"]))] for one in rows])
    return {"input_ids": ids, "attention_mask": ids.ne(0).long(), "labels": ids.masked_fill(ids.eq(0), -100)}


@pytest.fixture
def build(tiny_llama_dir, tmp_path):
    """A trainer of the tiny Llama, ``changes`` of its arguments."""

    def trainer(kind=Trainer, callbacks=(), **changes):
        fields = {
            "use_cpu": True, "report_to": [], "max_steps": 4, "per_device_train_batch_size": 2, "logging_steps": 1,
            "save_steps": 2, "eval_strategy": "steps", "eval_steps": 4, "learning_rate": 1e-2, "disable_tqdm": True,
        }  # fmt: skip
        args = TrainingArguments(str(tmp_path / "out"), **{**fields, **changes})
        model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32)
        rows = Dataset.from_dict({"input_ids": ROWS})
        return kind(
            model=model, args=args, train_dataset=rows, eval_dataset=rows, data_collator=collate, callbacks=[*callbacks]
        )

    return trainer


def losses(trainer):
    return [one["loss"] for one in trainer.state.log_history if "loss" in one]


@pytest.mark.parametrize("kind", [Trainer, hf_efficient.EfficientTrainer])
def test_it_sees_the_longest_batch_and_leaves_no_trace(build, kind, tmp_path, capsys):
    class Refused(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            raise AssertionError("callbacks are left out")

    trainer = build(kind, bf16=True, gradient_accumulation_steps=3)
    trainer.add_callback(Refused())
    before = {name: one.clone() for name, one in trainer.model.state_dict().items()}
    found = hf_efficient.preflight_check(trainer)
    assert (found.passed, found.batch_rows, found.batch_tokens) == (True, 2, 30)
    assert (found.micro_batches, found.recipe_micro_batches) == (2, 3)
    assert found.checkpoints_to_come == 2
    assert found.needed_bytes == 2 * found.checkpoint_bytes + found.model_bytes
    assert list((tmp_path / "out").iterdir()) == []
    said = capsys.readouterr().out
    assert "longest batch 2 x 30 tokens (2 of 3 micro-batches a step)" in said
    assert "not loaded back\n" in said
    for name, one in trainer.model.state_dict().items():
        assert torch.equal(one, before[name]), name
    assert all(one.grad is None for one in trainer.model.parameters())
    trainer.remove_callback(Refused)
    trainer.train()
    other = build(kind, bf16=True, gradient_accumulation_steps=3)
    other.train()
    assert losses(trainer) == losses(other)
    with pytest.raises(SetupError, match="has trained already"):
        hf_efficient.preflight_check(trainer)


def test_out_of_memory_names_what_to_write(build, tmp_path):
    class Small(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            if inputs["input_ids"].shape[1] > 20:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return super().compute_loss(model, inputs, *args, **kwargs)

    said = (
        r"out of memory in the training step on the longest batch \(2 x 30 tokens\): CUDA out of memory. Tried to "
        "allocate 2.00 GiB. Write one of: per_device_train_batch_size=1 gradient_accumulation_steps=2; "
    )
    with pytest.raises(PreflightError, match=said):
        hf_efficient.preflight_check(build(Small))
    assert list((tmp_path / "out").iterdir()) == []


def test_a_disk_without_room(build, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(9, 9, 1000))
    with pytest.raises(PreflightError, match=r"2 checkpoints of .* 1000 B are free\. Write save_total_limit=1"):
        hf_efficient.preflight_check(build())


def test_a_save_that_fails(build):
    class Unsaved(Trainer):
        def _save_checkpoint(self, *args, **kwargs):
            raise OSError("No space left on device")

    with pytest.raises(PreflightError, match="saving a checkpoint: OSError: No space left"):
        hf_efficient.preflight_check(build(Unsaved))


def test_what_is_no_trainer():
    with pytest.raises(SetupError, match="preflight_check: takes a Trainer, not dict"):
        hf_efficient.preflight_check({})
