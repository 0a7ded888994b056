"""Operators in parts: what their kernels allocate and free before they return."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from hf_efficient.simulate import flash

_KINDS = (torch.bool, torch.int32, torch.int64, torch.bfloat16, torch.float16, torch.float32, torch.float64)
_COMMON = {(one, other): torch.promote_types(one, other) for one in _KINDS for other in _KINDS if one != other}
"""Of two dtypes that differ."""


def cpu_casts() -> Mapping[Any, Callable[..., Any]]:
    """Sums and products of tensors of two dtypes, as a CPU computes them: on copies in the common dtype. A GPU casts
    each value as it is read, and takes no memory. Source: ``TensorIteratorBase::compute_types`` of pytorch 2.13
    (``aten/src/ATen/TensorIterator.cpp``), "Promotes inputs by creating temporaries of the correct dtype"."""
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


def int8_decompositions() -> Mapping[Any, Callable[..., Any]]:
    """By operator, what it does in parts, as ``bitsandbytes.backends`` (0.50) has it. Columns with inputs of 6 or more
    in magnitude are multiplied in 16 bits; their unknown number is taken as 0."""
    ops = torch.ops.bitsandbytes
    return {
        ops.int8_vectorwise_quant.default: _vectorwise_quant,
        ops.int8_mixed_scaled_mm.default: _mixed_scaled_mm,
        ops.int8_scaled_mm.default: _scaled_mm,
    }


def _vectorwise_quant(values: torch.Tensor, threshold: float = 0.0) -> tuple[torch.Tensor, ...]:
    rounded = values.new_empty(values.shape, dtype=torch.int8)
    constants = values.new_empty((values.numel() // values.shape[-1],), dtype=torch.float32)
    if threshold > 0:
        values.abs().ge(threshold)
    return rounded, constants, values.new_empty((0,), dtype=torch.int64)


def _mixed_scaled_mm(
    values: torch.Tensor,
    rounded: torch.Tensor,
    weight: torch.Tensor,
    constants: torch.Tensor,
    weight_constants: torch.Tensor,
    outlier_cols: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    product = _scaled_mm(rounded, weight, constants, weight_constants, bias, values.dtype)
    return product, values.new_empty((0,))


def _scaled_mm(
    rounded: torch.Tensor,
    weight: torch.Tensor,
    constants: torch.Tensor,
    weight_constants: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Sums in int32, scaled to float16, and from there to the data type that is wanted."""
    ops = torch.ops.bitsandbytes
    sums = ops.int8_linear_matmul.default(rounded, weight)
    scaled = ops.int8_mm_dequant.default(sums, constants, weight_constants, dtype=torch.float16, bias=bias)
    return scaled.to(dtype or torch.float16)


def decompositions(*, on_gpu: bool = True) -> Mapping[Any, Callable[..., Any]]:
    """By operator, what it does in operators whose results are seen; those of bitsandbytes where it is installed."""
    of_the_device: dict[Any, Callable[..., Any]] = {
        torch.ops.aten._grouped_mm.default: _grouped_mm,
        torch.ops.aten.scatter_add.default: _scatter_add,
        **({} if on_gpu else cpu_casts()),
    }
    try:
        import bitsandbytes  # noqa: F401  registers its operators
    except ImportError:
        return of_the_device
    return {torch.ops.bitsandbytes.gemm_4bit.default: _gemm_4bit, **int8_decompositions(), **of_the_device}


def workspaces(*, on_gpu: bool = True) -> Mapping[Any, Callable[..., Any]]:
    """By operator, what a GPU's kernel allocates and frees before it returns, as shapes and dtypes."""
    flashes = (flash.BACKWARD.default, flash.CPU_BACKWARD.default) if on_gpu else ()
    return dict.fromkeys(flashes, flash.backward_workspace)


def _scatter_add(into: torch.Tensor, dim: int, index: torch.Tensor, values: torch.Tensor) -> Any:
    """In place in a backward, as that of ``gather`` is. Of tensors like these, which are subclasses, it makes a copy:
    ``gather_backward`` of pytorch 2.13 (``aten/src/ATen/native/TensorAdvancedIndexing.cpp``)."""
    if torch.is_grad_enabled():
        return NotImplemented
    return into.scatter_add_(dim, index, values)


def _grouped_mm(left: torch.Tensor, right: torch.Tensor, offs: torch.Tensor | None = None, *_: Any, **__: Any) -> Any:
    """The result of a product of several experts, each with its own rows (or columns) of a two-dimensional operand.
    torch's shapes without values are of bfloat16 alone; kernels for other dtypes are there on CPUs and GPUs."""
    if left.dtype == torch.bfloat16:
        return NotImplemented
    experts: list[int] = []
    if left.dim() == right.dim():
        experts = [left.shape[0] if left.dim() == 3 else offs.shape[0]]  # type: ignore[union-attr]
    return left.new_empty([*experts, left.shape[-2], right.shape[-1]])


def _gemm_4bit(
    values: torch.Tensor,
    weight: torch.Tensor,
    shape: list[int],
    absmax: torch.Tensor,
    blocksize: int,
    kind: str,
    bias: torch.Tensor | None = None,
    absmax_8bit: torch.Tensor | None = None,
    absmax_code: torch.Tensor | None = None,
    absmax_offset: torch.Tensor | None = None,
) -> torch.Tensor:
    """Unpack the whole weight, multiply, drop it; a GPU below some 1,500 rows may not unpack, and takes less."""
    ops = torch.ops.bitsandbytes
    if absmax_8bit is not None:
        absmax = ops.dequantize_blockwise.default(absmax_8bit, absmax, absmax_code, 256, torch.float32) + absmax_offset
    unpacked = ops.dequantize_4bit.default(weight, absmax, blocksize, kind, shape, values.dtype)
    return torch.nn.functional.linear(values, unpacked, bias)
