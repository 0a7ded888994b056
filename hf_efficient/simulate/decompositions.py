"""Operators whose inside is told: what their kernels allocate and free before they return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from hf_efficient.simulate.cpu_casts import cpu_casts
from hf_efficient.simulate.int8_products import int8_decompositions


def decompositions(*, on_gpu: bool = True) -> Mapping[Any, Callable[..., Any]]:
    """By operator, what it does in operators whose results are seen; those of bitsandbytes where it is installed.

    Args:
        on_gpu: whether the run is on a GPU.
    """
    of_the_device = {} if on_gpu else cpu_casts()
    try:
        import bitsandbytes  # noqa: F401  registers its operators
    except ImportError:
        return of_the_device
    return {torch.ops.bitsandbytes.gemm_4bit.default: _gemm_4bit, **int8_decompositions(), **of_the_device}


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
    """Unpack the whole weight, multiply, drop it: bitsandbytes' way on a CPU, and on a GPU above some 1,500 rows.

    Below that, depending on architecture and shape, a GPU multiplies without unpacking; the weight is then an upper
    bound of what is allocated.
    """
    ops = torch.ops.bitsandbytes
    if absmax_8bit is not None:
        absmax = ops.dequantize_blockwise.default(absmax_8bit, absmax, absmax_code, 256, torch.float32) + absmax_offset
    unpacked = ops.dequantize_4bit.default(weight, absmax, blocksize, kind, shape, values.dtype)
    return torch.nn.functional.linear(values, unpacked, bias)
