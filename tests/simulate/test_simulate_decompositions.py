"""What operators allocate inside themselves, against the real thing."""

import bitsandbytes as bnb
import pytest
import torch
from bitsandbytes.functional import QuantState
from real_allocations import real_allocations

from hf_efficient.simulate.blank import emptied
from hf_efficient.simulate.decompositions import decompositions
from hf_efficient.simulate.tensor_log import TensorLog


def without_values(state):
    """The same quantization state on blank tensors."""
    fields = {name: getattr(state, name) for name in ("shape", "blocksize", "quant_type", "dtype")}
    nested = None
    if state.nested:
        inner = state.state2
        nested = QuantState(
            emptied(inner.absmax), code=emptied(inner.code), blocksize=inner.blocksize, dtype=inner.dtype
        )
    offset = emptied(state.offset) if state.nested else None
    return QuantState(emptied(state.absmax), code=emptied(state.code), offset=offset, state2=nested, **fields)


def quantization_tensors(state):
    held = [state.absmax, state.code]
    return [*held, state.offset, state.state2.absmax, state.state2.code] if state.nested else held


@pytest.mark.parametrize("double", [True, False], ids=["double", "single"])
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no bias"])
def test_forward_and_backward_allocate_what_they_really_do(double, with_bias):
    packed, state = bnb.functional.quantize_4bit(
        torch.randn(96, 128, dtype=torch.float32), quant_type="nf4", compress_statistics=double
    )
    values = torch.randn(24, 128, requires_grad=True)
    bias = torch.randn(96) if with_bias else None

    def code(values, packed, state, bias):
        bnb.matmul_4bit(values, packed, bias=bias, quant_state=state).exp().sum().backward()

    real = [size for size in real_allocations(lambda: code(values, packed, state, bias)) if abs(size) > 8]
    log = TensorLog(decompositions=decompositions())
    blanks = [emptied(values.detach()).requires_grad_(), emptied(packed)]
    blank_bias = None if bias is None else emptied(bias)
    blank_state = without_values(state)
    for one in (*blanks, blank_bias, *quantization_tensors(blank_state)):
        if one is not None:
            log.add(one, "there before", "weights")
    before = len(log.events)
    with log:
        code(*blanks, blank_state, blank_bias)
    logged = [size for _, size in log.events[before:] if abs(size) > 8]
    assert logged == real
    unpacked, result = 4 * 96 * 128, 4 * 24 * 96
    assert logged.count(unpacked) == 2  # the whole weight, in the forward and in the backward
    assert result in logged


_SCALARS = 8
BF16, FP32, INT64 = torch.bfloat16, torch.float32, torch.int64
CASES = [(BF16, FP32), (FP32, BF16), (BF16, torch.float16), (INT64, FP32), (FP32, FP32)]


def logged(code, *tensors, on_gpu=False):
    log = TensorLog(decompositions=decompositions(on_gpu=on_gpu))
    blanks = [emptied(one) for one in tensors]
    for one in blanks:
        log.add(one, "argument", "rest")
    with log:
        kept = code(*blanks)
    sizes = [size for _, size in log.events[len(blanks) :]]
    return sizes, kept


@pytest.mark.parametrize("dtypes", CASES, ids=str)
@pytest.mark.parametrize("code", [torch.add, torch.sub, torch.mul, torch.div], ids=lambda one: one.__name__)
@pytest.mark.parametrize("shapes", [((64, 32), (64, 32)), ((64, 32), (32,)), ((64, 1), (1, 32))], ids=str)
def test_a_cpu_allocates_the_copies(code, dtypes, shapes):
    tensors = [torch.ones(shape).to(dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    real = [size for size in real_allocations(lambda: code(*tensors)) if abs(size) > _SCALARS]
    sizes, kept = logged(code, *tensors)
    assert (kept.shape, kept.dtype) == (code(*tensors).shape, code(*tensors).dtype)
    assert sizes == real


def test_a_scaled_sum_keeps_its_scale():
    told = []
    log = TensorLog(
        on_operator=lambda func, args, kwargs, out: told.append((str(func), kwargs)),
        decompositions=decompositions(on_gpu=False),
    )
    first, second = emptied(torch.ones(4, dtype=BF16)), emptied(torch.ones(4))
    with log:
        torch.add(first, second, alpha=3)
    assert [name for name, _ in told] == ["aten._to_copy.default", "aten.add.Tensor"]
    assert told[1][1] == {"alpha": 3}


def test_when_no_copy_is_made():
    values = torch.ones(64, dtype=BF16)
    for factor in (2.5, torch.ones(())):
        sizes, kept = logged(lambda one, factor=factor: one * factor, values)
        assert (sizes, kept.dtype) == ([128], BF16)
    sizes, _ = logged(torch.mul, torch.ones(64, dtype=BF16), torch.ones(64), on_gpu=True)
    assert sizes == [256]
