"""The trainer trains bit for bit as the class below it."""

import pytest
from datasets import Dataset
from tiny_training import METHODS, assert_same_run, build_model, every, reward_model, train_causal, trl_trainer
from transformers import Trainer
from trl import DPOTrainer, RewardTrainer, SFTTrainer

from hf_efficient import EfficientDPOTrainer, EfficientRewardTrainer, EfficientSFTTrainer
from hf_efficient.trainer import EfficientTrainer

pytestmark = pytest.mark.slow
# Every pair of two settings is among them.
PAIRWISE = [
    ("full", 1, False, True), ("full", 3, True, False), ("lora", 1, True, True), ("lora", 3, False, False),
    ("qlora", 1, True, False), ("qlora", 3, False, True),
]  # fmt: skip
SETTINGS = pytest.mark.parametrize(("method", "accumulation", "checkpointing", "packed"), PAIRWISE)


@SETTINGS
def test_efficient_trainer_trains_as_trainer(tiny_dir, tmp_path, method, accumulation, checkpointing, packed):
    settings = (method, packed, checkpointing)
    plain, ours = (
        train_causal(kind, tiny_dir, tmp_path / kind.__name__, *settings, gradient_accumulation_steps=accumulation)
        for kind in (Trainer, EfficientTrainer)
    )
    assert_same_run(ours, plain)
    assert len(plain.state.log_history) == len(ours.state.log_history) == 4
    assert plain.state.total_flos == ours.state.total_flos > 0


def both(kinds, build, tmp_path, tokenizer, **changes):
    found = []
    for kind in kinds:
        found.append(trl_trainer(kind, build(), tmp_path / kind.__name__, tokenizer, **changes))
        found[-1].train()
    plain, ours = found
    assert_same_run(ours, plain)
    return plain, ours


def timeless(trainer):
    timed = ("runtime", "per_second", "efficiency/")
    return [{k: v for k, v in entry.items() if not any(t in k for t in timed)} for entry in trainer.state.log_history]


@SETTINGS
def test_mixin_trains_as_sft_trainer(tiny_dir, tmp_path, tiny_tokenizer, method, accumulation, checkpointing, packed):
    plain, ours = both(
        (SFTTrainer, EfficientSFTTrainer),
        lambda: build_model(tiny_dir, method, checkpointing),
        tmp_path,
        tiny_tokenizer,
        gradient_accumulation_steps=accumulation,
        gradient_checkpointing=checkpointing,
        packing=packed,
        max_length=48,
    )
    assert timeless(ours) == timeless(plain)


@pytest.mark.parametrize("method", METHODS)
def test_mixin_trains_as_dpo_trainer(tiny_dir, tmp_path, tiny_tokenizer, method):
    kinds, settings = (DPOTrainer, EfficientDPOTrainer), {"gradient_accumulation_steps": 2}
    both(kinds, lambda: build_model(tiny_dir, method), tmp_path, tiny_tokenizer, **settings)


def test_mixin_trains_as_reward_trainer(tmp_path, tiny_tokenizer):
    kinds, settings = (RewardTrainer, EfficientRewardTrainer), {"gradient_accumulation_steps": 2}
    both(kinds, reward_model, tmp_path, tiny_tokenizer, **settings)


@pytest.mark.parametrize("logged", ["steps", "epoch"])
def test_where_the_last_step_evaluates_the_logs_are_those_of_the_class_below(
    tiny_dir, tmp_path, tiny_tokenizer, logged
):
    more = {"eval_dataset": Dataset.from_list([{"text": f"{i} is {i}"} for i in range(4)])}
    settings = {"more": more, **every(evaluate=2), "max_steps": 4, "logging_strategy": logged, "logging_steps": 3}
    kinds = (SFTTrainer, EfficientSFTTrainer)
    plain, ours = both(kinds, lambda: build_model(tiny_dir, "lora"), tmp_path, tiny_tokenizer, **settings)
    assert timeless(ours) == timeless(plain)
    assert "mean_token_accuracy" not in ours.state.log_history[-1]
