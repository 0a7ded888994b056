"""The checks of the first step: 4-bit layers, gradients, packed examples, a fused head."""

import logging
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import DistributedType
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface
from trl.trainer import add_fused_lm_head

from hf_efficient.callbacks import checks
from hf_efficient.errors import TrainingCheckError

bitsandbytes = pytest.importorskip("bitsandbytes")


def quantized(double_quant=True):
    torch.manual_seed(0)
    layers = [
        bitsandbytes.nn.Linear4bit(
            128, 64, bias=False, compute_dtype=torch.bfloat16, compress_statistics=double_quant, quant_type="nf4"
        )
        for _ in range(2)
    ]
    return nn.Sequential(layers[0], nn.Identity(), nn.ModuleDict({"inner": layers[1]})).to("cpu")


def dequantized(layer):
    return bitsandbytes.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state).float()


@pytest.mark.skipif(not bitsandbytes.functional.has_avx512bf16(), reason="without AVX512-BF16 nothing is repacked")
@pytest.mark.parametrize("double_quant", [True, False])
def test_repacked_weights_are_unpacked(caplog, double_quant):
    model = quantized(double_quant)
    layer = model[0].eval()
    before, bytes_before = dequantized(layer), layer.weight.data.clone()
    layer(torch.ones(1, 128))
    assert layer.weight.quant_state.packing_format_for_cpu

    checks.keep_four_bit_trainable(model)

    assert torch.equal(layer.weight.data, bytes_before)
    assert not layer.weight.quant_state.packing_format_for_cpu
    # The scales went through bfloat16 (8 bits) and, with double quantization, through 8 bits once more.
    limit = 2**-8 if not double_quant else 2**-5
    assert (dequantized(layer) - before).abs().max() <= limit * before.abs().max()
    assert caplog.text.count("1 4-bit layers had been repacked for inference") == 1

    x = torch.ones(1, 128, requires_grad=True)
    layer.train()(x).sum().backward()
    torch.testing.assert_close(x.grad[0], dequantized(layer).sum(0), rtol=0.02, atol=0.02)


def test_without_bitsandbytes_nothing_happens(monkeypatch):
    monkeypatch.delitem(sys.modules, "bitsandbytes")
    assert checks.keep_four_bit_trainable(nn.Linear(2, 2)) == 0
    assert "bitsandbytes" not in sys.modules


def half_frozen():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU(), nn.Embedding(3, 2))
    model[1].requires_grad_(False)
    model[3].weight.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("optimizer", "distributed", "reason"),
    [
        ("adamw_torch", "MULTI_CPU", None),
        ("adalomo", "NO", "adalomo"),
        ("galore_adamw_layerwise", "NO", "galore_adamw_layerwise"),
        ("adamw_torch", "DEEPSPEED", "DEEPSPEED"),
        ("adamw_torch", "FSDP", "FSDP"),
    ],
)
def test_gradients_that_are_not_on_the_parameters_are_left_out(monkeypatch, caplog, optimizer, distributed, reason):
    state = SimpleNamespace(distributed_type=DistributedType(distributed))
    monkeypatch.setattr("accelerate.state.AcceleratorState", lambda: state)
    monkeypatch.setattr("accelerate.state.is_initialized", lambda: True)
    model, check = half_frozen(), checks.GradientCheck()
    args = SimpleNamespace(torch_compile=False, optim=optimizer)
    check.on_train_begin(args, None, None)
    said = pytest.raises(TrainingCheckError) if reason is None else nullcontext()
    with caplog.at_level(logging.DEBUG, logger="hf_efficient"), said:
        check.on_pre_optimizer_step(args, None, None, model=model)
    if reason is not None:
        assert caplog.messages == [f"Gradients are not checked: with {reason} they are not on the parameters."]


@pytest.fixture
def mixing_attention():
    """An attention that ignores the mask it is given and is causal over the whole row."""
    name = "ignores_packing"

    def attend(module, query, key, value, attention_mask, **kwargs):
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        value = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        output = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return output.transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS.register(name, attend)
    yield name
    del AttentionInterface._global_mapping[name]


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_shipped_implementations_keep_examples_apart(tiny_llama_dir, implementation):
    model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir, attn_implementation=implementation)
    model.train()
    assert checks.mixing_ratio(model) < 1e-4
    assert model.training


def test_a_mixing_attention_is_named(tiny_llama_dir, mixing_attention):
    model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir, attn_implementation=mixing_attention)
    with pytest.raises(TrainingCheckError, match="'ignores_packing' packed examples read each other"):
        checks.PackingCheck().on_train_begin(None, None, None, model=model)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def model(request, tiny_llama_dir):
    model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=request.param)
    with torch.no_grad():
        model.lm_head.weight.mul_(30)
    add_fused_lm_head(model)
    return model.train()


def test_a_head_that_computes_the_same_passes(model):
    assert checks.head_error(model) < (1e-5 if model.dtype == torch.float32 else 0.02)
    checks.FusedHeadCheck().on_train_begin(SimpleNamespace(), None, None, model=model)
    assert model.training


def test_a_model_that_scales_its_logits_otherwise_is_named(model):
    """As a family would that TRL does not know."""
    model.lm_head.register_forward_hook(lambda module, args, output: 1.5 * output)
    with pytest.raises(TrainingCheckError, match=r"chunked_nll does not compute the logits of llama as the model does"):
        checks.FusedHeadCheck().on_train_begin(SimpleNamespace(), None, None, model=model)
    args = SimpleNamespace(loss_type="chunked_nll")
    checks.FusedHeadCheck(falls_back=True).on_train_begin(args, None, None, model=model)
    assert args.loss_type == "nll"
