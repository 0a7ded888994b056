"""Sums and products of tensors of two dtypes, as a CPU computes them: on copies in the common dtype.

A GPU casts each value as it is read, and takes no memory for it. Source: ``TensorIteratorBase::compute_types`` of
pytorch (``aten/src/ATen/TensorIterator.cpp``, 2.13), "Promotes inputs by creating temporaries of the correct dtype",
where the common device is a CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

_KINDS = (torch.bool, torch.int32, torch.int64, torch.bfloat16, torch.float16, torch.float32, torch.float64)
_COMMON = {(one, other): torch.promote_types(one, other) for one in _KINDS for other in _KINDS if one != other}
"""Of two dtypes that differ."""


def cpu_casts() -> Mapping[Any, Callable[..., Any]]:
    """By operator, what it does; not implemented for tensors of one dtype, which need no copy."""
    aten = torch.ops.aten
    operators = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)
    return {func: functools.partial(_cast_first, func) for func in operators}


def _cast_first(func: Any, first: Any, second: Any, **named: Any) -> Any:
    both = isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)
    if not both or first.dim() == 0 or second.dim() == 0:
        return NotImplemented
    common = _COMMON.get((first.dtype, second.dtype))
    if common is None:
        return NotImplemented
    return func(_cast(first, common), _cast(second, common), **named)


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor if tensor.dtype == dtype else torch.ops.aten._to_copy.default(tensor, dtype=dtype)
