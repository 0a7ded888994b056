"""What a preflight check is made of: digests, the longest rows, and its short recipe."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from hf_efficient.data.build import build_preference_data, build_sft_data
from hf_efficient.data.stats import lengths
from hf_efficient.launch.arguments import training_arguments
from hf_efficient.model.load import load_tokenizer
from hf_efficient.preflight.launches import preflight_folder, preflight_recipe
from hf_efficient.preflight.process import digest, longest_data, longest_rows, optimizer_digests, weight_digests
from hf_efficient.recipe.files import shipped_files, shipped_root
from hf_efficient.recipe.load import load_recipe


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.int64])
def test_one_bit_two_swapped_numbers_and_the_shape_change_a_digest(dtype):
    held = torch.arange(7).to(dtype)
    assert digest(held) == digest(held.clone())
    other = held.clone()
    other[3] += 1
    swapped = held.clone()
    swapped[2], swapped[5] = held[5], held[2]
    words = {digest(one) for one in (held, other, swapped, held.reshape(7, 1), held[:6])}
    assert len(words) == 5


def test_places_beyond_a_chunk_and_strides_count():
    late = torch.zeros((1 << 20) + 3)
    late[-1] = 1
    assert digest(torch.zeros_like(late)) != digest(late)
    square = torch.arange(6.0).reshape(2, 3)
    assert digest(square.t()) == digest(square.t().contiguous())
    assert digest(torch.zeros(0)) == digest(torch.ones(0))
    assert digest(torch.tensor(2.0)) != digest(torch.tensor(3.0))


def test_what_is_trained_and_the_state_of_its_optimizer_by_name():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model[1].parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert set(weight_digests(model)) == {"1.weight", "1.bias"}
    wrapped_twice = SimpleNamespace(optimizer=SimpleNamespace(optimizer=optimizer))
    before = optimizer_digests(wrapped_twice, model)
    keys = ("exp_avg", "exp_avg_sq", "step")
    assert set(before) == {f"1.{name} {key}" for name in ("weight", "bias") for key in keys}
    optimizer.step()
    after = optimizer_digests(optimizer, model)
    assert all(after[name] != before[name] for name in before)


def test_flat_copies_that_an_engine_trains_are_compared_too():
    model, flat = nn.Linear(2, 1), nn.Parameter(torch.ones(3))
    told = optimizer_digests(torch.optim.SGD([flat]), model)
    assert told == {"partition 0": digest(flat)}


def test_the_longest_first_and_again_from_the_first_where_there_are_too_few():
    held = np.array([5, 9, 2, 9, 7])
    assert longest_rows(held, 3) == [1, 3, 4]
    assert longest_rows(held, 7) == [1, 3, 4, 0, 2, 1, 3]


@pytest.mark.parametrize("train", [[], ["train.packing=true"]])
def test_every_micro_batch_of_a_check_is_the_largest(train, tiny_recipe):
    rule = tiny_recipe("train.gradient_accumulation_steps=2", "data.eval_fraction=0.25", *train)
    args, tokenizer = training_arguments(rule), load_tokenizer(rule.model, rule.train)
    data = build_sft_data(rule, tokenizer, args)
    found = longest_data(data, args, steps=2)
    tokens = sorted(lengths(data.train), reverse=True)
    assert tokens[0] > tokens[-1]  # else every batch would do
    batches = list(DataLoader(found.train, batch_size=2, collate_fn=found.collator))
    assert len(batches) == 2 * 2  # steps, micro-batches
    expected = (1, tokens[0] + tokens[1]) if train else (2, tokens[0])
    assert {tuple(batch["input_ids"].shape) for batch in batches} == {expected}
    assert max(lengths(found.eval)) == max(lengths(data.eval))
    assert len(found.eval) == min(8, len(data.eval))
    asked = [len(json.dumps(one["prompt"])) for one in found.eval_examples]
    assert asked == sorted((len(json.dumps(one["prompt"])) for one in data.eval_examples), reverse=True)


def test_pairs_by_the_longer_of_their_answers(tiny_recipe, tmp_path):
    lengths_of = ((3, 4), (2, 30), (20, 1), (5, 5))
    rows = [{"prompt": "Say", "chosen": "a" * chosen, "rejected": "b" * rejected} for chosen, rejected in lengths_of]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    own = ("objective=dpo", f"data.train=[{{path: {path}}}]", "data.eval_fraction=null", "evaluate.metrics=[]")
    rule = tiny_recipe(*own, "train.per_device_train_batch_size=1")
    args, tokenizer = training_arguments(rule), load_tokenizer(rule.model, rule.train)
    found = longest_data(build_preference_data(rule, tokenizer, args), args, steps=2)
    assert [row["rejected"].count("b") for row in found.train] == [30, 30]


SHIPPED = sorted(shipped_files(shipped_root()))[::4]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_can_be_checked(name):
    recipe = load_recipe(name)
    short = preflight_recipe(recipe, 8)
    assert short.train["max_steps"] == 2
    assert short.train["gradient_accumulation_steps"] == 2
    for key in ("per_device_train_batch_size", "max_length", "gradient_checkpointing", "optim", "packing"):
        assert short.train.get(key) == recipe.train.get(key)
    for section in ("model", "adapter", "data", "distributed"):
        assert getattr(short, section) == getattr(recipe, section)


def test_what_would_wait_report_or_stand_still_is_off(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("name: t\nmodel: {id: m}\ndata: {train: [{path: a}], eval_fraction: 0.1}\noutput_dir: out\n")
    overrides = [
        "train.eval_strategy=steps", "train.save_strategy=steps", "train.load_best_model_at_end=true",
        "evaluate.early_stopping.patience=2", "budget.usd=1", "train.warmup_steps=50",
        "train.lr_scheduler_type=reduce_lr_on_plateau", "train.report_to=all", "train.push_to_hub=true",
        "train.train_sampling_strategy=group_by_length", "train.eval_on_start=true",
        "profile.nvtx=true", "train.gradient_accumulation_steps=1",
    ]  # fmt: skip
    recipe = load_recipe(path, overrides)
    short = preflight_recipe(recipe, 1)
    expected = {
        "eval_strategy": "no", "save_strategy": "no", "report_to": "none", "lr_scheduler_type": "constant",
        "warmup_steps": 0, "gradient_accumulation_steps": 1, "push_to_hub": False, "eval_on_start": False,
        "train_sampling_strategy": "sequential",
    }  # fmt: skip
    assert {name: short.train[name] for name in expected} == expected
    assert (short.evaluate.early_stopping, short.budget) == (None, None)
    assert not short.profile.nvtx
    assert preflight_folder(recipe).parent == preflight_folder(short).parents[2]  # in the run's own directory


def test_a_global_batch_is_not_checked_in_full():
    """64 sequences of 4 rows on 2 processes are 8 micro-batches, of which 2 are enough."""
    recipe = load_recipe("quickstart/lora", ["distributed.processes=2", "distributed.global_batch_size=64"])
    short = preflight_recipe(recipe, recipe.train["gradient_accumulation_steps"])
    assert (short.train["gradient_accumulation_steps"], short.distributed.global_batch_size) == (2, None)
