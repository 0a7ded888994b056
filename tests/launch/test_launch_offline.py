from __future__ import annotations

import os

import pytest

from hf_efficient.launch import machine as offline
from hf_efficient.launch.machine import go_offline_without_hub, needs_hub
from hf_efficient.recipe.schema import Recipe


def recipe(model, *data, tokenizer=None) -> Recipe:
    return Recipe(
        name="t",
        model={"id": str(model), "tokenizer": tokenizer},
        data={"train": [{"path": str(path)} for path in data]},
        output_dir="o",
    )


def test_what_needs_the_hub(tiny_llama_dir, chats_jsonl):
    assert not needs_hub(recipe(tiny_llama_dir, chats_jsonl, "builtin:python-docstrings"))
    assert needs_hub(recipe("owner/model", chats_jsonl))
    assert needs_hub(recipe(tiny_llama_dir, chats_jsonl, tokenizer="owner/model"))
    assert needs_hub(recipe(tiny_llama_dir, "openai/gsm8k"))
    assert not needs_hub(recipe("./missing", chats_jsonl))


@pytest.mark.parametrize("reachable", [True, False])
def test_offline_only_where_the_hub_is_needed_and_away(reachable, tiny_llama_dir, chats_jsonl, monkeypatch):
    monkeypatch.setattr(offline, "hub_reachable", lambda: reachable)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert not go_offline_without_hub(recipe(tiny_llama_dir, chats_jsonl))
    assert os.environ["HF_HUB_OFFLINE"] == "0"
    assert go_offline_without_hub(recipe("owner/model", chats_jsonl)) is (not reachable)
    assert os.environ["HF_HUB_OFFLINE"] == ("0" if reachable else "1")
