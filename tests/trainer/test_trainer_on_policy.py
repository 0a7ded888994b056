"""On-policy distillation in a script of one's own: the mixin changes nothing of TRL's DistillationTrainer."""

import math

import pytest
import torch
from datasets import Dataset
from tiny_training import arguments, assert_same_run, records, tiny_config, valid_account
from transformers import LlamaForCausalLM
from trl import DistillationConfig, DistillationTrainer

from hf_efficient import EfficientDistillationTrainer

PROMPTS = Dataset.from_list([{"prompt": f"{i} + {i} ="} for i in range(8)])


def trained(kind, folder, tokenizer):
    torch.manual_seed(1)
    student, teacher = (LlamaForCausalLM(tiny_config(attention_dropout=0.0)) for _ in range(2))
    settings = {"per_device_train_batch_size": 4, "max_completion_length": 6, "gradient_accumulation_steps": 2}
    args = arguments(folder, DistillationConfig, **settings)
    trainer = kind(student, teacher, args, train_dataset=PROMPTS, processing_class=tokenizer)
    trainer.train()
    return trainer


def test_it_trains_as_the_trainer_below_and_its_account_closes(tmp_path, tiny_tokenizer):
    ours = trained(EfficientDistillationTrainer, tmp_path / "ours", tiny_tokenizer)
    assert_same_run(ours, trained(DistillationTrainer, tmp_path / "plain", tiny_tokenizer))
    found = valid_account(tmp_path / "ours")
    (process,) = found.time.processes
    total = math.fsum(process.phase_seconds.values()) + process.unattributed_seconds
    assert total == pytest.approx(process.wall_seconds)
    for record in records(tmp_path / "ours"):
        assert {"generation", "teacher", "forward", "backward", "optimizer"} <= set(record.phase_seconds)
        assert 0 < record.tokens.target <= 8 * 6
    weights = next(one for one in found.memory.categories if one.name == "weights")
    both = 2 * 4 * sum(one.numel() for one in ours.model.parameters())
    assert weights.bytes >= both
