from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from hf_efficient.callbacks.checks import FourBitGuard, keep_four_bit_trainable

bitsandbytes = pytest.importorskip("bitsandbytes")
needs_repacking = pytest.mark.skipif(
    not bitsandbytes.functional.has_avx512bf16(), reason="this CPU has no AVX512-BF16: nothing is repacked"
)


def quantized(double_quant=True):
    torch.manual_seed(0)
    layers = [
        bitsandbytes.nn.Linear4bit(
            128,
            64,
            bias=False,
            compute_dtype=torch.bfloat16,
            compress_statistics=double_quant,
            quant_type="nf4",
        )
        for _ in range(2)
    ]
    return nn.Sequential(layers[0], nn.Identity(), nn.ModuleDict({"inner": layers[1]})).to("cpu")


def dequantized(layer):
    return bitsandbytes.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state).float()


def test_every_layer_is_guarded():
    model = quantized()
    assert keep_four_bit_trainable(model) == 2
    assert [model[0].support_avx512bf16_for_cpu, model[2]["inner"].support_avx512bf16_for_cpu] == [
        False,
        False,
    ]
    model[0].eval()(torch.ones(1, 128))
    assert not getattr(model[0].weight.quant_state, "packing_format_for_cpu", False)
    assert keep_four_bit_trainable(model) == 2


@needs_repacking
@pytest.mark.parametrize("double_quant", [True, False])
def test_repacked_weights_are_unpacked(caplog, double_quant):
    model = quantized(double_quant)
    layer = model[0].eval()
    before, bytes_before = dequantized(layer), layer.weight.data.clone()
    layer(torch.ones(1, 128))
    assert layer.weight.quant_state.packing_format_for_cpu

    keep_four_bit_trainable(model)

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
    assert keep_four_bit_trainable(nn.Linear(2, 2)) == 0
    assert "bitsandbytes" not in sys.modules


def test_the_callback_guards_at_init_and_at_the_start_of_training():
    first, second = quantized(), quantized()
    guard = FourBitGuard()
    guard.on_init_end(None, None, None, model=first)
    guard.on_train_begin(None, None, None, model=second)
    guard.on_init_end(None, None, None)
    assert [first[0].support_avx512bf16_for_cpu, second[0].support_avx512bf16_for_cpu] == [False, False]
