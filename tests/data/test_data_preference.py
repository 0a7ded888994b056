from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from trl import DPOConfig, DPOTrainer

from hf_efficient.data.build import PreferenceData, build_preference_data
from hf_efficient.errors import DataError
from hf_efficient.recipe.schema import Recipe


@pytest.fixture
def tokenizer(tiny_tokenizer):
    return copy.deepcopy(tiny_tokenizer)


@pytest.fixture
def build(tmp_path, tokenizer):
    def make(rows: list[dict], max_length: int | None = 64, eval_fraction: float | None = None) -> PreferenceData:
        return build_preference_data(recipe(tmp_path, rows, eval_fraction), tokenizer, arguments(max_length=max_length))

    return make


def recipe(folder: Path, rows: list[dict], eval_fraction: float | None = None) -> Recipe:
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return Recipe.model_validate(
        {
            "name": "r",
            "method": "dpo",
            "model": {"id": "m"},
            "output_dir": "o",
            "data": {"train": [{"path": str(path)}], "eval_fraction": eval_fraction},
        }
    )


def arguments(**settings: Any) -> DPOConfig:
    return DPOConfig(output_dir="o", use_cpu=True, bf16=False, report_to="none", **settings)


def text_pair(length: int) -> dict:
    return {"prompt": "p" * length, "chosen": "yes", "rejected": "no"}


def chat_pair(length: int) -> dict:
    return {
        "prompt": [{"role": "user", "content": "p" * length}],
        "chosen": [{"role": "assistant", "content": "yes"}],
        "rejected": [{"role": "assistant", "content": "no"}],
    }


def message(call: Any, *args: Any, **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        call(*args, **settings)
    return str(caught.value)


def test_hand_worked_rows(build, tokenizer):
    ids = tokenizer.convert_tokens_to_ids
    data = build([{"prompt": "ab", "chosen": "c", "rejected": "de"}])
    assert data.train[:] == {
        "prompt": ["ab"],
        "chosen": ["c<|im_end|>"],
        "rejected": ["de<|im_end|>"],
        "prompt_ids": [[ids("a"), ids("b")]],
        "chosen_ids": [[ids("c"), 2]],
        "rejected_ids": [[ids("d"), ids("e"), 2]],
    }
    assert (data.eval, data.dropped, data.eval_dropped, data.largest_token_id) == (None, 0, 0, ids("e"))


@pytest.mark.parametrize("pair", [text_pair, chat_pair])
@pytest.mark.parametrize("max_length", [None, 45])
def test_the_rows_are_those_of_dpo_trainer(pair, max_length, build, tokenizer, tiny_llama_dir):
    from transformers import AutoModelForCausalLM

    rows = [pair(length) for length in range(1, 60, 6)]
    data = build(rows, max_length)
    theirs = DPOTrainer(
        AutoModelForCausalLM.from_pretrained(tiny_llama_dir),
        args=arguments(max_length=max_length),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=copy.deepcopy(tokenizer),
    )
    assert data.train[:] == theirs.train_dataset[:]
    assert data.dropped == len(rows) - len(theirs.train_dataset)


def test_pairs_whose_prompt_fills_max_length_are_counted(build):
    data = build([text_pair(length) for length in (3, 7, 8, 9)], max_length=8)
    assert (data.train["prompt"][:], data.dropped) == (["ppp", "ppppppp"], 2)
    split = build([text_pair(3)] * 2 + [text_pair(8)] * 6, max_length=8, eval_fraction=0.5)
    assert split.eval is not None
    assert (len(split.train) + split.dropped, len(split.eval) + split.eval_dropped) == (4, 4)


def test_no_end_and_no_padding_token(build, tokenizer):
    tokenizer.pad_token = None
    build([chat_pair(3)])
    assert tokenizer.pad_token == "<|im_end|>"
    tokenizer.pad_token = tokenizer.eos_token = None
    assert message(build, [text_pair(3)]) == (
        "The tokenizer (unnamed) has no end-of-sequence token, which ends every text. Name a tokenizer that has one "
        "in model.tokenizer."
    )
    assert message(build, [chat_pair(3)]) == (
        "The tokenizer (unnamed) has neither a padding nor an end-of-sequence token. Set train.pad_token to a token "
        "of its vocabulary."
    )


def test_a_chat_that_the_template_refuses_is_named(build, tokenizer, tmp_path):
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m['content'] == 'pp' %}{{ raise_exception('Not two') }}{% endif %}"
        "{{ m['content'] }}{% endfor %}"
    )
    assert message(build, [chat_pair(1), chat_pair(2)]) == (
        f"{tmp_path / 'pairs.jsonl'}:2: the chat template refuses this chat: Not two."
    )
