from typing import Any

import datasets
from made_data import arguments, recipe

from hf_efficient.data import docstrings
from hf_efficient.data.cache import cache_key, tokenizer_identity
from hf_efficient.data.examples import open_sources
from hf_efficient.recipe.schema import Recipe


def key(made: Recipe, tokenizer: Any, **settings: Any) -> str:
    return cache_key(made, tokenizer, arguments(**settings), open_sources(made.data))


def test_the_key_follows_content_and_settings_and_nothing_else(chats_jsonl, tmp_path, tokenizer):
    base = key(recipe(chats_jsonl), tokenizer)
    assert len(base) == 64
    copied = tmp_path / "elsewhere.jsonl"
    copied.write_bytes(chats_jsonl.read_bytes())
    assert key(recipe(copied), tokenizer) == base
    assert key(recipe(chats_jsonl, cache_dir="anywhere"), tokenizer) == base
    assert key(recipe(chats_jsonl), tokenizer, learning_rate=1.0, per_device_train_batch_size=3) == base
    own = [
        *({"show": 9}, {"source": {"weight": 2}}, {"source": {"format": "messages"}}, {"eval_fraction": 0.1}),
        *({"max_train_examples": 3}, {"system": "s"}, {"overlong": "drop"}),
    ]
    train = [
        *({"max_length": 77}, {"packing": True}, {"packing_strategy": "wrapped"}, {"eval_packing": True}, {"seed": 1}),
        *({"completion_only_loss": True}, {"assistant_only_loss": True}, {"truncation_mode": "keep_end"}),
        {"shuffle_dataset": True},
    ]
    other = [key(recipe(chats_jsonl, **settings), tokenizer) for settings in own]
    other += [key(recipe(chats_jsonl), tokenizer, **settings) for settings in train]
    chats_jsonl.write_text(chats_jsonl.read_text() + "\n")
    other.append(key(recipe(chats_jsonl), tokenizer))
    assert len({base, *other}) == len(other) + 1


def test_the_tokenizer_s_identity(tokenizer, tiny_llama_dir):
    from transformers import AutoTokenizer

    base = tokenizer_identity(tokenizer)
    assert tokenizer_identity(AutoTokenizer.from_pretrained(tiny_llama_dir)) == base
    tokenizer(["a", "abc"], padding=True, truncation=True, max_length=2)
    assert tokenizer_identity(tokenizer) == base
    tokenizer.chat_template += " "
    changed = tokenizer_identity(tokenizer)
    tokenizer.eos_token = "<|endoftext|>"
    ended = tokenizer_identity(tokenizer)
    tokenizer.add_tokens(["new"])
    assert len({base, changed, ended, tokenizer_identity(tokenizer)}) == 4


def test_the_key_of_builtins_and_hub_data_sets(tokenizer, monkeypatch):
    base = key(recipe("builtin:python-docstrings"), tokenizer)
    assert key(recipe("builtin:python-docstrings", source={"split": "eval"}), tokenizer) != base
    monkeypatch.setattr(docstrings, "ALGORITHM_VERSION", 99)
    assert key(recipe("builtin:python-docstrings"), tokenizer) != base
    loaded = [datasets.Dataset.from_list([{"text": "a"}]), datasets.Dataset.from_list([{"text": "b"}])]
    keys = []
    for dataset in (*loaded, loaded[0]):
        monkeypatch.setattr(datasets, "load_dataset", lambda *_, dataset=dataset, **__: dataset)
        keys.append(key(recipe("owner/set"), tokenizer))
    assert keys[0] == keys[2] != keys[1]
