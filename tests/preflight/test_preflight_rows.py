"""The longest batch: the real rows, through the real collator, alike on every process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from hf_efficient.data.build import build_preference_data, build_sft_data
from hf_efficient.data.stats import lengths
from hf_efficient.launch.arguments import training_arguments
from hf_efficient.model.load import load_tokenizer
from hf_efficient.preflight.process import longest_data, longest_rows
from hf_efficient.recipe.schema import Recipe


def recipe(model: Path, source: Path, output: Path, train: dict, **sections) -> Recipe:
    arguments = {"max_length": 96, "bf16": False, "use_cpu": True, "gradient_accumulation_steps": 2, **train}
    values = {
        "name": "tiny",
        "model": {"id": str(model)},
        "data": {"train": [{"path": str(source)}], "eval_fraction": 0.25},
        "train": arguments,
        "output_dir": str(output),
    }
    return Recipe(**{**values, **sections})


def test_the_longest_first_and_again_from_the_first_where_there_are_too_few():
    held = np.array([5, 9, 2, 9, 7])
    assert longest_rows(held, 3) == [1, 3, 4]
    assert longest_rows(held, 7) == [1, 3, 4, 0, 2, 1, 3]


@pytest.mark.parametrize("train", [{}, {"packing": True}, {"padding_free": True}])
def test_every_micro_batch_of_a_proof_is_the_largest(train, tiny_llama_dir, chats_jsonl, tmp_path):
    rule = recipe(tiny_llama_dir, chats_jsonl, tmp_path, {"per_device_train_batch_size": 2, **train})
    args, tokenizer = training_arguments(rule), load_tokenizer(rule.model, rule.train)
    data = build_sft_data(rule, tokenizer, args)
    proof = longest_data(data, args, steps=2)
    tokens = sorted(lengths(data.train), reverse=True)
    assert tokens[0] > tokens[-1]  # else every batch would do
    batches = list(DataLoader(proof.train, batch_size=2, collate_fn=proof.collator))
    assert len(batches) == 2 * 2  # steps, micro-batches
    expected = (1, tokens[0] + tokens[1]) if train else (2, tokens[0])
    assert {tuple(batch["input_ids"].shape) for batch in batches} == {expected}
    assert max(lengths(proof.eval)) == max(lengths(data.eval))
    assert len(proof.eval) == min(8, len(data.eval))
    asked = [len(json.dumps(one["prompt"])) for one in proof.eval_examples]
    assert asked == sorted((len(json.dumps(one["prompt"])) for one in data.eval_examples), reverse=True)


def test_pairs_by_the_longer_of_their_answers(tiny_llama_dir, tmp_path):
    rows = [
        {"prompt": "Say", "chosen": "a" * chosen, "rejected": "b" * rejected}
        for chosen, rejected in ((3, 4), (2, 30), (20, 1), (5, 5))
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    train = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1}
    rule = recipe(tiny_llama_dir, path, tmp_path, train, method="dpo", data={"train": [{"path": str(path)}]})
    args, tokenizer = training_arguments(rule), load_tokenizer(rule.model, rule.train)
    proof = longest_data(build_preference_data(rule, tokenizer, args), args, steps=2)
    assert [row["rejected"].count("b") for row in proof.train] == [30, 30]
