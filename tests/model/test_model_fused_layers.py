"""Fused layers against PEFT's and the model's own, forward and backward."""

import copy
import io

import pytest
import torch
from live_models import adapted as lora_of
from live_models import live
from peft import LoraConfig, get_peft_model
from torch import nn
from torch._dynamo.testing import CompileCounter

from hf_efficient.model.fast_layers import fuse_lora, fuse_norms


class Block(nn.Module):
    def __init__(self, dtype=torch.float32, bias=False):
        super().__init__()
        self.up = nn.Linear(24, 40, bias=bias, dtype=dtype)
        self.down = nn.Linear(40, 24, dtype=dtype)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def adapted(dtype=torch.float32, bias=False, **options):
    """A block with a LoRA whose B is not zero."""
    torch.manual_seed(0)
    return with_lora(Block(dtype, bias), **options)


def with_lora(block, **options):
    model = get_peft_model(block, LoraConfig(r=4, lora_alpha=12, target_modules=["up", "down"], **options))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.3)
    return model.train()


def step(model, x, autocast=None):
    """The output, and the gradients of the input and of every trained parameter."""
    x = x.clone().requires_grad_()
    torch.manual_seed(1)  # of the dropout
    with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
        out = model(x)
    out.float().pow(2).sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    model.zero_grad(set_to_none=True)
    return out, x.grad, grads


def compare(model, x, tolerance, autocast=None):
    plain = step(copy.deepcopy(model), x, autocast)
    assert fuse_lora(model)[0] == 2
    fused = step(model, x, autocast)
    torch.testing.assert_close(fused[0], plain[0], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(fused[1], plain[1], rtol=tolerance, atol=tolerance * 10)
    assert fused[2].keys() == plain[2].keys()
    for name, grad in plain[2].items():
        torch.testing.assert_close(fused[2][name], grad, rtol=tolerance, atol=tolerance * float(grad.abs().max()))


@pytest.mark.parametrize("options", [{}, {"bias": True}, {"lora_dropout": 0.3}, {"use_rslora": True}], ids=str)
def test_it_computes_what_peft_computes(options):
    compare(adapted(**options), torch.randn(2, 7, 24), 2e-5)


def test_it_rounds_no_more_and_needs_no_input_gradient():
    compare(adapted(torch.bfloat16), torch.randn(2, 7, 24).bfloat16(), 3e-2, torch.bfloat16)
    model = adapted()
    fuse_lora(model)
    model(torch.randn(3, 24)).sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    assert fuse_lora(adapted(use_dora=True)) == (0, {"its adapter is a variant of LoRA": 2})


def test_four_bit_layers_are_dequantized_for_forward_and_backward():
    bnb = pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    block = Block()
    for name in ("up", "down"):
        dense = getattr(block, name)
        layer = bnb.nn.Linear4bit(
            dense.in_features, dense.out_features, dense.bias is not None, compute_dtype=torch.float32, quant_type="nf4"
        )
        layer.load_state_dict(dense.state_dict(), strict=False)
        layer.support_avx512bf16_for_cpu = False
        setattr(block, name, layer.to("cpu").requires_grad_(False))
    compare(with_lora(block), torch.randn(2, 7, 24), 1e-4)


def test_a_disabled_adapter_and_several_active_ones_go_to_peft():
    plain, x = adapted(), torch.randn(3, 24)
    plain.add_adapter("second", LoraConfig(r=2, target_modules=["up", "down"], init_lora_weights=False))
    fused = copy.deepcopy(plain)
    assert fuse_lora(fused)[0] == 2
    with plain.disable_adapter(), fused.disable_adapter():
        alone = fused(x)
        torch.testing.assert_close(alone, plain(x), rtol=0, atol=0)
    assert not torch.allclose(alone, fused(x))
    for model in (plain, fused):
        model.base_model.set_adapter(["default", "second"])
    torch.testing.assert_close(fused(x), plain(x), rtol=0, atol=0)


def test_what_is_unfrozen_or_added_later_is_trained_by_peft():
    plain = lora_of(live().requires_grad_(False))
    fused = copy.deepcopy(plain)
    fuse_norms(fused)
    fuse_lora(fused)
    for model in (plain, fused):
        model.add_adapter("late", LoraConfig(r=2, target_modules=["q_proj"], lora_bias=True))
        model.set_adapter("late")
        for name, parameter in model.named_parameters():
            parameter.requires_grad_()
            if "late" in name:
                nn.init.constant_(parameter, 0.1)
        model(torch.arange(9)[None]).logits.sum().backward()
    for one, other in zip(plain.parameters(), fused.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad)


def test_fused_layers_are_copied_and_pickled():
    model = lora_of(live().requires_grad_(False))
    fuse_norms(model)
    assert fuse_lora(model)[0] == 14
    file, tokens = io.BytesIO(), torch.arange(9)[None]
    torch.save(model, file)
    file.seek(0)
    expected = model(tokens).logits
    for other in (torch.load(file, weights_only=False), copy.deepcopy(model)):
        assert fuse_lora(other)[0] == 14
        torch.testing.assert_close(other(tokens).logits, expected, rtol=0, atol=0)


def compilations(layers):
    """How many graphs are made where each of some layers is compiled by itself."""
    torch._dynamo.reset()
    model = lora_of(live("llama", num_hidden_layers=layers))
    fuse_norms(model)
    fuse_lora(model)
    counter = CompileCounter()
    for module in model.modules():
        if type(module).__name__ == "LlamaDecoderLayer":
            module.compile(backend=counter)
    model(torch.arange(12)[None], use_cache=False).logits.sum().backward()
    return counter.frame_count


def test_layers_that_are_compiled_one_by_one_are_compiled_once():
    assert compilations(3) == compilations(6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])  # of which the second also has norms of heads
def test_a_frozen_norm_is_the_models_own(kind, dtype, tolerance):
    model = live(kind).to(dtype).requires_grad_(False)
    fused = copy.deepcopy(model)
    norms = [name for name, module in model.named_modules() if type(module).__name__.endswith("RMSNorm")]
    assert fuse_norms(fused) == len(norms)
    for name in norms:
        one, other = model.get_submodule(name), fused.get_submodule(name)
        one.weight.data.uniform_(0.5, 2)
        other.weight.data.copy_(one.weight)
        x = torch.randn(2, 5, one.weight.numel(), dtype=dtype, requires_grad=True)
        pair = [(y, *torch.autograd.grad(y.float().pow(2).sum(), x)) for y in (one(x), other(x))]
        for plain, ours in zip(*pair, strict=True):
            torch.testing.assert_close(ours, plain, rtol=tolerance, atol=tolerance * float(plain.abs().max()))


def test_a_norm_that_is_trained_or_computed_otherwise_stays():
    assert fuse_norms(live("llama")) == 0
    assert fuse_norms(live("gemma2").requires_grad_(False)) == 0
