from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, GPT2Config, GPT2LMHeadModel

from hf_efficient.errors import ModelError
from hf_efficient.model.load import check_positions, check_vocabulary, load_base, load_dense_base
from hf_efficient.recipe.schema import ModelSection, Recipe


def test_weights_that_the_checkpoint_lacks_are_named(tiny_llama_dir, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir)
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.0.self_attn.q_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ModelError, match=r"lacks weights of LlamaForCausalLM.*model\.layers\.0\.self_attn\.q_proj\.weight"
    ):
        load_dense_base(ModelSection(id=str(tmp_path)))
    quantized = Recipe(
        name="t",
        model={"id": str(tmp_path)},
        adapter={"method": "qlora"},
        data={"train": [{"path": "x"}]},
        output_dir="o",
    )
    with pytest.raises(ModelError, match="lacks weights"):
        load_base(quantized)


def test_an_adapters_folder_is_no_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"holds an adapter, not a model\. Merge it first"):
        load_dense_base(ModelSection(id=str(tmp_path)))


def test_truncated_weights_are_named(tiny_llama_dir, tmp_path):
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


def test_an_encoder_decoder_is_no_causal_model(tmp_path):
    AutoConfig.for_model("t5").save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="its architecture is no causal language model"):
        load_dense_base(ModelSection(id=str(tmp_path)))


def test_a_token_beyond_the_embedding():
    model = torch.nn.Module()
    model.get_input_embeddings = lambda: torch.nn.Embedding(10, 2)
    check_vocabulary(model, 9)
    with pytest.raises(ModelError, match="token id 10, but the model has embeddings for 10 tokens"):
        check_vocabulary(model, 10)


def test_learned_positions_end_and_rotary_ones_are_remarked_on(tiny_llama_dir):
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
