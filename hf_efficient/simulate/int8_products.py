"""The products of bitsandbytes' 8-bit layers in parts: what the kernels of a GPU allocate before they return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def int8_decompositions() -> Mapping[Any, Callable[..., Any]]:
    """By operator, what it does in parts, as ``bitsandbytes.backends`` (0.50) has it.

    Inputs of 6 or more in magnitude are multiplied in 16 bits, column by column. How many there will be nobody knows
    before the run: none are taken for granted.
    """
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
