"""GRPO: the mixin changes nothing of TRL's trainer, and its account has the phases and tokens of completions."""

import math

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tiny_training import (
    arguments,
    assert_same_run,
    every,
    losses,
    records,
    tiny_config,
    trained_weights,
    valid_account,
)
from transformers import LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer

from hf_efficient import EfficientGRPOTrainer, plan
from hf_efficient.errors import SetupError

PROMPTS = Dataset.from_list([{"prompt": f"{i} + {i} ="} for i in range(8)])


def evens(completion_ids, **_):
    """The share of even tokens."""
    return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completion_ids]


def equal(completion_ids, **_):
    return [0.5] * len(completion_ids)


def built(kind, folder, tokenizer, reward=evens, **changes):
    torch.manual_seed(1)
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(LlamaForCausalLM(tiny_config(attention_dropout=0.0)), lora)
    settings = {"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 6, **changes}
    args = arguments(folder, GRPOConfig, **settings)
    data = {"train_dataset": PROMPTS, "eval_dataset": PROMPTS.select([0])}
    return kind(model=model, reward_funcs=reward, args=args, processing_class=tokenizer, **data)


def trained(*args, **changes):
    trainer = built(*args, **changes)
    before = trained_weights(trainer)
    trainer.train()
    return trainer, before


SETTINGS = [
    {},
    {"gradient_accumulation_steps": 2, "num_iterations": 2, "beta": 0.1},
    {**every(evaluate=1), "per_device_eval_batch_size": 4, "steps_per_generation": 2},
]


@pytest.mark.parametrize("changes", [SETTINGS[0], *(pytest.param(one, marks=pytest.mark.slow) for one in SETTINGS[1:])])
def test_it_trains_as_the_trainer_below(changes, tmp_path, tiny_tokenizer):
    """Evaluations draw random numbers too; ours leave no trace in the training, TRL's own would."""
    unevaluated = {name: value for name, value in changes.items() if not name.startswith("eval_")}
    plain, _ = trained(GRPOTrainer, tmp_path / "plain", tiny_tokenizer, **unevaluated)
    ours, _ = trained(EfficientGRPOTrainer, tmp_path / "ours", tiny_tokenizer, **changes)
    assert_same_run(ours, plain)
    keys = ("reward", "completions/mean_length", "entropy")
    logged, expected = (
        [[one.get(key) for key in keys] for one in each.state.log_history if "eval_loss" not in one]
        for each in (ours, plain)
    )
    assert logged == expected


def test_the_account_closes_with_generation_reward_and_update(tmp_path, tiny_tokenizer):
    """Two micro-batches to a step share one generation; an evaluation generates too, and is no step's."""
    lengths = []

    def counts(completion_ids, **_):
        lengths.append([len(ids) for ids in completion_ids])
        return evens(completion_ids)

    settings = {"gradient_accumulation_steps": 2, "per_device_eval_batch_size": 4, **every(evaluate=3)}
    trained(EfficientGRPOTrainer, tmp_path, tiny_tokenizer, counts, beta=0.1, **settings)
    found = valid_account(tmp_path)
    (process,) = found.time.processes
    total = math.fsum(process.phase_seconds.values()) + process.unattributed_seconds
    assert total == pytest.approx(process.wall_seconds)
    assert process.unattributed_seconds <= 0.02 * process.wall_seconds
    steps = records(tmp_path)
    assert [record.micro_batches for record in steps] == [2, 2, 2]
    for record in steps:
        assert {"generation", "reward", "forward", "backward", "optimizer"} <= set(record.phase_seconds)
        assert record.phase_seconds["generation"] > record.phase_seconds["reward"]
    assert [len(each) for each in lengths] == [8, 8, 8, 4]
    assert [record.tokens.target for record in steps] == [sum(each) for each in lengths[:3]]
    assert [record.sequences.rows for record in steps] == [8, 8, 8]
    assert found.tokens.non_padding > found.tokens.target


def test_equal_rewards_give_no_gradient(tmp_path, tiny_tokenizer):
    trainer, before = trained(EfficientGRPOTrainer, tmp_path / "equal", tiny_tokenizer, equal)
    assert losses(trainer) == [0.0] * 3
    assert [one["grad_norm"] for one in trainer.state.log_history if "grad_norm" in one] == [0.0] * 3
    assert all(torch.equal(weight, before[name]) for name, weight in trained_weights(trainer).items())
    trainer, before = trained(EfficientGRPOTrainer, tmp_path / "evens", tiny_tokenizer)
    assert any(not torch.equal(weight, before[name]) for name, weight in trained_weights(trainer).items())


def test_at_the_first_step_the_policy_is_the_reference(tmp_path, tiny_tokenizer):
    trainer, _ = trained(EfficientGRPOTrainer, tmp_path, tiny_tokenizer, beta=0.5)
    kl = [one["kl"] for one in trainer.state.log_history if "kl" in one]
    assert kl[0] == pytest.approx(0, abs=1e-7)
    assert kl[-1] > 1e-6
    assert losses(trainer)[0] == pytest.approx(0, abs=1e-6)  # advantages of a group add up to 0


def test_no_plan(tmp_path, tiny_tokenizer):
    with pytest.raises(SetupError, match=r"GRPOTrainer trains on completions that it generates.* Train a few steps"):
        plan(built(EfficientGRPOTrainer, tmp_path, tiny_tokenizer), ["A10"])
