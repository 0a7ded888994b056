"""The recipe's adapter on a model, and the classes of its layers."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hf_efficient.errors import ModelError
from hf_efficient.model.adapter import add_adapter, check_wrap_classes
from hf_efficient.model.load import quantization_config
from hf_efficient.recipe.schema import AdapterSection, QuantizationSection


def base(folder, bits=None):
    quantization = {} if bits is None else {"quantization_config": quantization_config(QuantizationSection(bits=bits))}
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **quantization)


def trained(model) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def test_full_training_and_checkpointing(tiny_llama_dir):
    model = base(tiny_llama_dir)
    assert add_adapter(model, AdapterSection(method="full"), seed=0, checkpointing=True) is model
    for checkpointing in (False, True):
        model = add_adapter(base(tiny_llama_dir), AdapterSection(), seed=0, checkpointing=checkpointing)
        assert model.get_input_embeddings()(torch.tensor([[1]])).requires_grad is checkpointing


@pytest.mark.parametrize("bits", [None, 4, 8])
def test_lora_trains_r_times_in_plus_out_per_layer_in_float32(tiny_llama_dir, bits):
    section = AdapterSection(method="lora" if bits is None else "qlora", r=4)
    model = add_adapter(base(tiny_llama_dir, bits), section, seed=0, checkpointing=False)
    # hidden 32, intermediate 64, key/value 16; q k v o gate up down, two layers, rank 4
    per_layer = 4 * ((32 + 32) + (32 + 16) + (32 + 16) + (32 + 32) + 3 * (32 + 64))
    assert trained(model) == 2 * per_layer
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}


def test_target_modules_and_modules_to_save(tiny_llama_dir):
    section = AdapterSection(r=2, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"])
    model = add_adapter(base(tiny_llama_dir), section, seed=0, checkpointing=False)
    prefix = "base_model.model."
    names = {name.removeprefix(prefix) for name, weight in model.named_parameters() if weight.requires_grad}
    layers = {
        f"model.layers.{layer}.self_attn.{module}.lora_{matrix}.default.weight"
        for layer in (0, 1)
        for module in ("q_proj", "v_proj")
        for matrix in "AB"
    }
    assert names == layers | {"lm_head.modules_to_save.default.weight"}


def test_modules_that_are_not_there_are_named(tiny_llama_dir):
    with pytest.raises(ModelError, match=r"adapter\.target_modules: \['c_attn'\].*all-linear.*q_proj"):
        add_adapter(base(tiny_llama_dir), AdapterSection(target_modules=["c_attn"]), seed=0, checkpointing=False)
    with pytest.raises(ModelError, match=r"adapter\.modules_to_save: the model has no module head\..*lm_head"):
        add_adapter(base(tiny_llama_dir), AdapterSection(modules_to_save=["head"]), seed=0, checkpointing=False)


def test_dropout_on_experts_is_named_with_its_key():
    """Their weights are one tensor of three dimensions, which PEFT adapts without dropout."""
    config = AutoConfig.for_model(
        "mixtral", hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, num_local_experts=2, vocab_size=64,
    )  # fmt: skip
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    section = AdapterSection(dropout=0.05)
    with pytest.raises(ModelError, match=r"adapter\.dropout: is 0\.05, .* Write `adapter\.dropout: 0`"):
        add_adapter(model, section, seed=0, checkpointing=False, on_meta=True)


@pytest.fixture
def model(tiny_llama_dir):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tiny_llama_dir))


def test_wrap_classes(model):
    check_wrap_classes(model, None)
    check_wrap_classes(model, ["LlamaDecoderLayer"])
    check_wrap_classes(model, ["LlamaAttention", "LlamaMLP", "Embedding"])
    told = (
        "distributed.wrap_classes: LlamaDecoderLayr is no class of a layer of this model. Did you mean "
        "LlamaDecoderLayer? Its own: LlamaDecoderLayer, LlamaForCausalLM, LlamaModel, LlamaAttention, LlamaMLP."
    )
    with pytest.raises(ModelError) as raised:
        check_wrap_classes(model, ["LlamaMLP", "LlamaDecoderLayr"])
    assert str(raised.value) == told
    adapted = add_adapter(model, AdapterSection(), seed=0, checkpointing=False, on_meta=True)
    with pytest.raises(ModelError) as raised:  # an adapter's own modules are nothing to choose
        check_wrap_classes(adapted, ["LlamaDecoderLayr"])
    assert str(raised.value) == told
