"""Sums and products of two dtypes: what a CPU really allocates, and no copies on a GPU."""

from __future__ import annotations

import pytest
import torch
from real_allocations import real_allocations

from hf_efficient.simulate.blank import emptied
from hf_efficient.simulate.decompositions import decompositions
from hf_efficient.simulate.tensor_log import TensorLog

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


def test_a_number_is_no_tensor_to_copy():
    values = torch.ones(64, dtype=BF16)
    for factor in (2.5, torch.ones(())):
        sizes, kept = logged(lambda one, factor=factor: one * factor, values)
        assert (sizes, kept.dtype) == ([128], BF16)


def test_a_gpu_allocates_the_result_alone():
    sizes, _ = logged(torch.mul, torch.ones(64, dtype=BF16), torch.ones(64), on_gpu=True)
    assert sizes == [256]
