"""What is remembered of an operator's results, and what is not."""

from __future__ import annotations

import pytest
import torch

from hf_efficient.simulate.blank import ResultShapes

aten = torch.ops.aten


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


class Counted:
    """An operator that counts how often it really runs."""

    def __init__(self, func):
        self._schema = func._schema
        self.func = func
        self.runs = 0

    def __call__(self, *args, **kwargs):
        self.runs += 1
        return self.func(*args, **kwargs)


def test_the_same_shapes_run_once_and_never_share_a_storage():
    shapes, multiply = ResultShapes(), Counted(aten.mul.Tensor)
    results = [shapes.run(multiply, (meta(2, 3), meta(3)), {}) for _ in range(4)]
    assert multiply.runs == 1
    assert len({one.untyped_storage()._cdata for one in results}) == 4
    assert {(tuple(one.shape), one.stride(), one.dtype) for one in results} == {((2, 3), (3, 1), torch.float32)}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((meta(2, 3), meta(3)), (meta(2, 4), meta(4))),
        ((meta(2, 3), meta(3)), (meta(2, 3, dtype=torch.bfloat16), meta(3, dtype=torch.bfloat16))),
        ((meta(2, 3), meta(2, 3)), (meta(3, 2).t(), meta(3, 2).t())),
        ((meta(3), 2.0), (meta(3), 2)),
        ((meta(3, dtype=torch.int64), 2), (meta(3, dtype=torch.int64), 2.0)),
    ],
    ids=["sizes", "dtypes", "strides", "float or int", "int or float"],
)
def test_what_differs_is_run_again(first, second):
    shapes, multiply = ResultShapes(), Counted(aten.mul.Tensor)
    for args in (first, second, first, second):
        found, real = shapes.run(multiply, args, {}), aten.mul.Tensor(*args)
        assert (found.shape, found.stride(), found.dtype) == (real.shape, real.stride(), real.dtype)
    assert multiply.runs == 2


def test_named_arguments_count():
    shapes, copy = ResultShapes(), Counted(aten._to_copy.default)
    kinds = [shapes.run(copy, (meta(3),), {"dtype": dtype}).dtype for dtype in (torch.bfloat16, torch.float64) * 2]
    assert kinds == [torch.bfloat16, torch.float64] * 2
    assert copy.runs == 2


def test_lists_of_tensors_count():
    shapes, join = ResultShapes(), Counted(aten.cat.default)
    sizes = [tuple(shapes.run(join, ([meta(2), meta(rows)],), {}).shape) for rows in (1, 2, 1, 2)]
    assert sizes == [(3,), (4,), (3,), (4,)]
    assert join.runs == 2


def test_several_results_are_all_new():
    shapes, largest = ResultShapes(), Counted(aten.topk.default)
    results = [shapes.run(largest, (meta(4, 6), 2), {}) for _ in range(2)]
    assert largest.runs == 1
    assert [one.dtype for one in results[1]] == [torch.float32, torch.int64]
    assert len({one.untyped_storage()._cdata for pair in results for one in pair}) == 4


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (aten.view.default, (meta(6), [2, 3])),
        (aten.t.default, (meta(2, 3),)),
        (aten.slice.Tensor, (meta(6), 0, 1, 3)),
        (aten.split.Tensor, (meta(6), 3)),
        (aten._unsafe_view.default, (meta(6), [2, 3])),
        (aten._reshape_alias.default, (meta(6), [2, 3], [3, 1])),
        (aten.mul_.Tensor, (meta(6), 2.0)),
        (aten.detach.default, (meta(6),)),
    ],
    ids=lambda one: str(one) if isinstance(one, torch._ops.OpOverload) else "",
)
def test_what_shares_or_writes_a_storage_is_not_remembered(func, args):
    shapes = ResultShapes()
    for _ in range(2):
        result = shapes.run(func, args, {})
        first = result[0] if isinstance(result, (list, tuple)) else result
        assert first.untyped_storage()._cdata == args[0].untyped_storage()._cdata


def test_an_argument_without_a_hash_runs_every_time():
    class NoHash:
        __hash__ = None

    runs = []

    class Operator:
        _schema = aten.mul.Tensor._schema

        def __call__(self, *args):
            runs.append(args)
            return meta(3)

    shapes, operator = ResultShapes(), Operator()
    for _ in range(2):
        assert shapes.run(operator, (meta(3), NoHash()), {}).shape == (3,)
    assert len(runs) == 2
