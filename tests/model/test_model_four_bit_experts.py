"""Experts in 4 bits: packed as they load, equal to their dequantized weights forward and backward, and merged."""

import pytest
import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from transformers import AutoConfig, AutoModelForCausalLM

from hf_efficient.model.adapter import add_adapter
from hf_efficient.model.four_bit_experts import experts_are_packed, four_bit_experts
from hf_efficient.model.load import quantization_config
from hf_efficient.recipe.schema import AdapterSection, QuantizationSection

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "vocab_size": 64,
}  # fmt: skip
MIXTURES = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 16, "head_dim": 16},
}
EXPERTS = {"mixtral": ["w1", "w2", "w3"], "qwen3_moe": ["gate_proj", "up_proj", "down_proj"]}  # as PEFT calls them
IDS = torch.arange(60).reshape(3, 20) % 64


@pytest.fixture(params=MIXTURES)
def folder(request, tmp_path):
    torch.manual_seed(0)
    config = AutoConfig.for_model(request.param, **SIZES, **MIXTURES[request.param])
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / request.param)
    return tmp_path / request.param


def packed(folder, **section):
    config = quantization_config(QuantizationSection(compute_dtype="float32", **section))
    with experts_are_packed():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=config)


def adapted(model, rank):
    """With an adapter that changes something."""
    section = AdapterSection(method="qlora", r=rank, target_modules=["q_proj", *EXPERTS[model.config.model_type]])
    model = add_adapter(model, section, seed=0, checkpointing=False)
    generator = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(std=0.3, generator=generator)
    return model


def results(model):
    model.train()
    out = model(input_ids=IDS, labels=IDS)
    out.loss.backward()
    return out.logits.detach(), {name: one.grad for name, one in model.named_parameters() if one.requires_grad}


def test_each_weight_is_packed_as_bitsandbytes_packs_it(folder):
    dense = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = {name: one for name, one in packed(folder).named_parameters() if "experts" in name}
    assert len(found) == 4  # two weights in each of two layers
    for name, one in found.items():
        weight = dense.get_parameter(name)
        values, state = quantize_4bit(weight.data, compress_statistics=True, quant_type="nf4")
        assert one.dtype == torch.uint8
        assert one.numel() == weight.numel() // 2
        assert torch.equal(one.data, values)
        assert torch.equal(dequantize_4bit(one.data, one.quant_state), dequantize_4bit(values, state))


def test_a_switched_off_adapter_adds_nothing(folder):
    model = adapted(packed(folder), 4).train()
    with torch.no_grad(), model.disable_adapter():
        without = model(input_ids=IDS).logits
    with torch.no_grad():
        torch.testing.assert_close(without, packed(folder).train()(input_ids=IDS).logits, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(without, model(input_ids=IDS).logits)


def test_sharded_weights_stay_dense(folder):
    """FSDP2 takes a weight apart by its rows: storage in bfloat16 is what a recipe for it asks for."""
    config = quantization_config(QuantizationSection(), "bfloat16")
    with experts_are_packed():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, quantization_config=config)
    assert list(four_bit_experts(model)) == []


@pytest.mark.parametrize(("rank", "section"), [(8, {}), (3, {"double_quant": False, "type": "fp4"})])
def test_forward_and_backward_are_those_of_the_dequantized_weights(folder, rank, section):
    model = adapted(packed(folder, **section), rank)
    logits, gradients = results(model)
    dense = adapted(packed(folder, **section).dequantize(torch.float32), rank)
    wanted, wanted_gradients = results(dense)
    torch.testing.assert_close(logits, wanted, rtol=1e-5, atol=1e-5)
    assert gradients.keys() == wanted_gradients.keys()
    assert any("experts" in name for name in gradients)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, wanted_gradients[name], rtol=1e-4, atol=1e-6, msg=name)
