"""Packed weights without values are as large as those that bitsandbytes really packs."""

from __future__ import annotations

import bitsandbytes as bnb
import pytest
import torch
from torch import nn

from hf_efficient.planning.blank_model import blank_four_bit, plain_weights, quantization_constants
from hf_efficient.simulate.blank import Blank

SHAPES = [(64, 64), (3, 65), (5, 13), (48, 32), (17, 1000), (256, 257), (512, 384)]


def blank_layer(outputs, inputs, *, double, kind="nf4", dtype=torch.bfloat16):
    with torch.device("meta"):
        layer = bnb.nn.Linear4bit(inputs, outputs, bias=False, compress_statistics=double, quant_type=kind)
    model = nn.Sequential(layer)
    plain_weights(model, dtype)
    blank_four_bit(model, dtype)
    return layer


def looks(tensor):
    return None if tensor is None else (tuple(tensor.shape), tensor.dtype)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("double", [True, False], ids=["double", "single"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weight_and_constants_are_those_of_a_really_quantized_weight(shape, double, kind):
    packed, state = bnb.functional.quantize_4bit(
        torch.randn(shape, dtype=torch.bfloat16), quant_type=kind, compress_statistics=double
    )
    layer = blank_layer(*shape, double=double, kind=kind)
    found = layer.weight.quant_state
    assert looks(layer.weight) == looks(packed)
    assert looks(found.absmax) == looks(state.absmax)
    assert looks(found.code) == looks(state.code)
    assert looks(found.offset) == looks(state.offset)
    assert (found.state2 is None) == (state.state2 is None) == (not double)
    if double:
        assert looks(found.state2.absmax) == looks(state.state2.absmax)
        assert looks(found.state2.code) == looks(state.state2.code)
        assert found.state2.blocksize == state.state2.blocksize
    assert (found.shape, found.dtype, found.blocksize, found.quant_type, found.nested) == (
        state.shape,
        state.dtype,
        state.blocksize,
        state.quant_type,
        state.nested,
    )


@pytest.mark.parametrize(("double", "constants"), [(True, 262_144 + 4096 + 64 + 1024 + 4), (False, 4 * 262_144 + 64)])
def test_bytes_by_hand(double, constants):
    # 4096 x 4096 values: half a byte each; 262,144 blocks of 64; 1,024 blocks of 256 of those; tables of 16 and of 256
    layer = blank_layer(4096, 4096, double=double)
    assert layer.weight.shell.untyped_storage().nbytes() == 8 * 2**20
    held = quantization_constants(layer)
    assert sum(one.shell.untyped_storage().nbytes() for one in held) == constants


def test_the_constants_of_another_layer_are_none():
    assert quantization_constants(nn.Linear(2, 2)) == []
    assert quantization_constants(nn.ReLU()) == []


def test_a_packed_weight_is_a_frozen_parameter_without_values():
    layer = blank_layer(8, 8, double=True)
    assert isinstance(layer.weight, nn.Parameter)
    assert isinstance(layer.weight, Blank)
    assert not layer.weight.requires_grad
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    assert not layer.support_avx512bf16_for_cpu


@pytest.mark.parametrize("double", [True, False], ids=["double", "single"])
def test_a_product_has_the_dtype_of_its_input(double):
    layer = blank_layer(12, 8, double=double)
    values = torch.randn(3, 8, dtype=torch.bfloat16)
    made = layer(values)
    assert (tuple(made.shape), made.dtype, type(made)) == ((3, 12), torch.bfloat16, Blank)


def test_other_layers_stay_as_they_are():
    layer = nn.Linear(4, 4)
    weight = layer.weight
    model = nn.Sequential(layer)
    plain_weights(model, torch.bfloat16)
    blank_four_bit(model, torch.bfloat16)
    assert layer.weight is weight
