"""The trainer trains bit for bit as the class below it."""

from __future__ import annotations

import pytest
from datasets import Dataset
from tiny_training import (
    METHODS,
    arguments,
    assert_same_run,
    build_model,
    causal_trainer,
    preference_rows,
    reward_model,
)
from transformers import Trainer
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

from hf_efficient.trainer import EfficientTrainer, EfficientTrainerMixin


class EfficientSFTTrainer(EfficientTrainerMixin, SFTTrainer):
    pass


class EfficientDPOTrainer(EfficientTrainerMixin, DPOTrainer):
    pass


class EfficientRewardTrainer(EfficientTrainerMixin, RewardTrainer):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["stored", "checkpointed"])
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_efficient_trainer_trains_as_trainer(tiny_dir, tmp_path, method, accumulation, checkpointing, packed):
    runs = []
    for kind in (Trainer, EfficientTrainer):
        out = tmp_path / kind.__name__
        runs.append(
            causal_trainer(kind, tiny_dir, out, method, packed, checkpointing, gradient_accumulation_steps=accumulation)
        )
        runs[-1].train()
    plain, ours = runs
    assert_same_run(ours, plain)
    assert len(plain.state.log_history) == len(ours.state.log_history) == 4


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize(("accumulation", "checkpointing"), [(1, False), (3, True)], ids=["one", "three-checkpointed"])
@pytest.mark.parametrize("method", METHODS)
def test_mixin_trains_as_sft_trainer(tiny_dir, tmp_path, tiny_tokenizer, method, accumulation, checkpointing, packed):
    runs = []
    for kind in (SFTTrainer, EfficientSFTTrainer):
        args = arguments(
            tmp_path / kind.__name__,
            SFTConfig,
            gradient_accumulation_steps=accumulation,
            gradient_checkpointing=checkpointing,
            packing=packed,
            max_length=48,
        )
        texts = Dataset.from_list([{"text": f"{i} times {i} is {i * i}" + "!" * (i % 5)} for i in range(40)])
        model = build_model(tiny_dir, method, checkpointing)
        runs.append(kind(model=model, args=args, train_dataset=texts, processing_class=tiny_tokenizer))
        runs[-1].train()
    plain, ours = runs
    assert_same_run(ours, plain)
    timeless = [
        [{k: v for k, v in entry.items() if "runtime" not in k and "per_second" not in k} for entry in log]
        for log in (ours.state.log_history, plain.state.log_history)
    ]
    timeless[0] = [{k: v for k, v in entry.items() if not k.startswith("efficiency/")} for entry in timeless[0]]
    assert timeless[0] == timeless[1]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_mixin_trains_as_dpo_trainer(tiny_dir, tmp_path, tiny_tokenizer, method):
    runs = []
    for kind in (DPOTrainer, EfficientDPOTrainer):
        args = arguments(tmp_path / kind.__name__, DPOConfig, gradient_accumulation_steps=2)
        data = Dataset.from_list(preference_rows())
        model = build_model(tiny_dir, method)
        runs.append(kind(model=model, args=args, train_dataset=data, processing_class=tiny_tokenizer))
        runs[-1].train()
    assert_same_run(runs[1], runs[0])


@pytest.mark.slow
def test_mixin_trains_as_reward_trainer(tmp_path, tiny_tokenizer):
    runs = []
    for kind in (RewardTrainer, EfficientRewardTrainer):
        args = arguments(tmp_path / kind.__name__, RewardConfig, gradient_accumulation_steps=2)
        data = Dataset.from_list(preference_rows())
        runs.append(kind(model=reward_model(), args=args, train_dataset=data, processing_class=tiny_tokenizer))
        runs[-1].train()
    assert_same_run(runs[1], runs[0])
