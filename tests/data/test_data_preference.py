import copy

import datasets
import pytest
from made_data import answer, arguments, jsonl, recipe, refused, user
from trl import DPOConfig, DPOTrainer

from hf_efficient.data.build import PreferenceData, build_preference_data


@pytest.fixture
def build(tmp_path, tokenizer):
    def make(rows: list[dict], max_length: int | None = 64, eval_fraction: float | None = None) -> PreferenceData:
        wanted = recipe(jsonl(tmp_path / "pairs.jsonl", rows), "dpo", eval_fraction=eval_fraction)
        return build_preference_data(wanted, tokenizer, arguments(DPOConfig, max_length=max_length))

    return make


def text_pair(length: int) -> dict:
    return {"prompt": "p" * length, "chosen": "yes", "rejected": "no"}


def chat_pair(length: int) -> dict:
    return {"prompt": [user("p" * length)], "chosen": [answer("yes")], "rejected": [answer("no")]}


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
        args=arguments(DPOConfig, max_length=max_length),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=copy.deepcopy(tokenizer),
    )
    assert data.train[:] == theirs.train_dataset[:]
    assert data.dropped == len(rows) - len(theirs.train_dataset)


def test_pairs_whose_prompt_fills_max_length_are_counted(build):
    data = build([text_pair(length) for length in (3, 7, 8, 9)], max_length=8)
    assert (data.train["prompt"][:], data.dropped) == (["ppp", "ppppppp"], 2)
    split = build([text_pair(3)] * 2 + [text_pair(8)] * 6, max_length=8, eval_fraction=0.5)
    assert (len(split.train) + split.dropped, len(split.eval) + split.eval_dropped) == (4, 4)


def test_no_end_and_no_padding_token(build, tokenizer):
    tokenizer.pad_token = None
    build([chat_pair(3)])
    assert tokenizer.pad_token == "<|im_end|>"
    tokenizer.pad_token = tokenizer.eos_token = None
    assert refused(build, [text_pair(3)]) == (
        "The tokenizer (unnamed) has no end-of-sequence token, which ends every text. Name a tokenizer that has one "
        "in model.tokenizer."
    )
    assert refused(build, [chat_pair(3)]) == (
        "The tokenizer (unnamed) has neither a padding nor an end-of-sequence token. Set train.pad_token to a token "
        "of its vocabulary."
    )


def test_a_chat_that_the_template_refuses_is_named(build, tokenizer, tmp_path):
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m['content'] == 'pp' %}{{ raise_exception('Not two') }}{% endif %}"
        "{{ m['content'] }}{% endfor %}"
    )
    assert refused(build, [chat_pair(1), chat_pair(2)]) == (
        f"{tmp_path / 'pairs.jsonl'}:2: the chat template refuses this chat: Not two."
    )
