"""Bytes of tensors by their storages, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hf_efficient.recording.activations import Storages, model_tensors, tensors_in


def bytes_of(tensors):
    found = Storages()
    found.add(tensors)
    return found.bytes_by_device()


def test_what_is_shared_is_counted_once_and_in_full():
    block = torch.zeros(10, 3)
    assert bytes_of([block, block.T, block[2:4], block.view(-1)[:1]]) == {"cpu": 120}
    assert bytes_of([block[2:4]]) == {"cpu": 120}  # the whole storage lives as long as a view of it
    assert bytes_of([block, block.clone(), torch.zeros(2, dtype=torch.int64)]) == {"cpu": 120 + 120 + 16}
    assert bytes_of([torch.empty(0), torch.zeros(3, device="meta")]) == {}


def test_what_is_apart_is_left_out():
    known, other = torch.zeros(4), torch.zeros(5)
    apart, found = Storages(), Storages()
    apart.add([known])
    found.add([known[1:], other], apart=apart)
    assert found.bytes_by_device() == {"cpu": 20}


def test_a_sparse_gradient_is_its_indices_and_values():
    table = nn.Embedding(100, 4, sparse=True)
    table(torch.tensor([1, 7, 7])).sum().backward()
    assert bytes_of([table.weight.grad]) == {"cpu": 3 * 8 + 3 * 4 * 4}


def test_a_wrapped_tensor_is_what_it_wraps():
    from torch.testing._internal.two_tensor import TwoTensor

    assert bytes_of([TwoTensor(torch.zeros(4), torch.zeros(4))]) == {"cpu": 32}


def test_tied_weights_and_buffers_of_a_model():
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 3, bias=False))
    model[2].weight = nn.Parameter(model[0].weight.T)  # another parameter on the same memory
    model[0].requires_grad_(False)
    # weight 15, bias 5, norm 5 + 5, running mean and variance 5 + 5, and a count in int64
    assert bytes_of(tensor for tensor, _ in model_tensors(model)) == {"cpu": 4 * (15 + 5 + 10 + 10) + 8}
    assert [trained for _, trained in model_tensors(model)] == [False, False, True, True, False, False, False, True]


def test_the_partition_of_a_parameter_under_zero_3():
    model = nn.Linear(4, 4, bias=False)
    model.weight.ds_tensor = torch.zeros(8)
    model.weight.data = torch.empty(0)
    assert bytes_of(tensor for tensor, _ in model_tensors(model)) == {"cpu": 32}


def nf4(rows, columns, double):
    import bitsandbytes

    layer = bitsandbytes.nn.Linear4bit(
        columns, rows, bias=False, quant_type="nf4", compress_statistics=double, compute_dtype=torch.float32
    )
    layer.weight = bitsandbytes.nn.Params4bit(
        torch.randn(rows, columns), requires_grad=False, quant_type="nf4", compress_statistics=double, module=layer
    )
    return layer.to("cpu")


@pytest.mark.parametrize("double", [False, True])
def test_bytes_of_an_nf4_layer(double):
    rows, columns = 128, 256
    weights = rows * columns
    blocks = weights // 64
    packed, code = weights // 2, 16 * 4
    # Double quantization: a byte per block, for every 256 of them a float, one offset, and a code book of 256 floats.
    scales = blocks + blocks // 256 * 4 + 4 + 256 * 4 if double else blocks * 4
    assert bytes_of(tensor for tensor, _ in model_tensors(nf4(rows, columns, double))) == {
        "cpu": packed + code + scales
    }


def test_bytes_of_an_8_bit_layer_before_and_after_its_first_forward():
    import bitsandbytes

    layer = bitsandbytes.nn.Linear8bitLt(64, 32, bias=False, has_fp16_weights=False)
    layer.weight = bitsandbytes.nn.Int8Params(torch.randn(32, 64), requires_grad=False, has_fp16_weights=False)
    layer.to("cpu")
    for _ in range(2):
        assert bytes_of(tensor for tensor, _ in model_tensors(layer)) == {"cpu": 32 * 64 + 32 * 4}
        layer(torch.randn(2, 64))


def test_tensors_of_nested_values():
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    assert [len(one) for one in tensors_in({"a": [a, (b, None)], "b": {"c": c}, "d": 3})] == [1, 2, 3]
    assert list(tensors_in(None)) == []


def test_constants_that_the_module_alone_keeps():
    """``fully_shard`` puts a DTensor in the place of the weight, which then knows of no constants."""
    layer = nf4(128, 256, double=False)
    layer.weight = nn.Parameter(torch.zeros(8), requires_grad=False)
    # a float for each of 512 blocks, and a code book of 16
    assert bytes_of(tensor for tensor, _ in model_tensors(layer)) == {"cpu": 8 * 4 + 512 * 4 + 16 * 4}
