"""Operators in parts: what their kernels allocate and free before they return; and FlashAttention without values.

torch has the kernels of FlashAttention as operators, whose meta functions know the shapes: the output, and a float32
per head and token (``softmax_lse``). What the backward takes for itself is from the source of both (``mha_bwd`` and
``mha_varlen_bwd`` of ``csrc/flash_attn/flash_api.cpp``, FlashAttention 2.7; torch 2.13 has a copy).
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

_aten = torch.ops.aten
FLASH_FORWARD = _aten._flash_attention_forward
FLASH_BACKWARD = _aten._flash_attention_backward
FLASH_CPU_BACKWARD = _aten._scaled_dot_product_flash_attention_for_cpu_backward
"""What a simulation runs in place of the kernel that ``scaled_dot_product_attention`` takes on a GPU."""
_ROWS = 128
_WIDTH = 32
_WIDEST = 256
_KINDS = (torch.bool, torch.int32, torch.int64, torch.bfloat16, torch.float16, torch.float32, torch.float64)
_COMMON = {(one, other): torch.promote_types(one, other) for one in _KINDS for other in _KINDS if one != other}
"""Of two dtypes that differ. Asked inside a simulation, ``promote_types`` would be an operator of it."""


def _cast_first(func: Any, first: Any, second: Any, **named: Any) -> Any:
    """A sum or product of tensors of two dtypes, as a CPU computes it: on copies in the common dtype. A GPU casts each
    value as it is read, and takes no memory. Source: ``TensorIteratorBase::compute_types`` of pytorch 2.13
    (``aten/src/ATen/TensorIterator.cpp``), "Promotes inputs by creating temporaries of the correct dtype"."""
    both = isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)
    if not both or first.dim() == 0 or second.dim() == 0:
        return NotImplemented
    common = _COMMON.get((first.dtype, second.dtype))
    return NotImplemented if common is None else func(_cast(first, common), _cast(second, common), **named)


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor if tensor.dtype == dtype else torch.ops.aten._to_copy.default(tensor, dtype=dtype)


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
    """By operator, what it does in operators whose results are seen. Those of bitsandbytes, if installed, as
    ``bitsandbytes.backends`` (0.50) has them, with no column of inputs of 6 or more, which is multiplied in 16 bits."""
    found: dict[Any, Any] = {_aten._grouped_mm.default: _grouped_mm, _aten.scatter_add.default: _scatter_add}
    if not on_gpu:
        arithmetic = (_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor)
        found |= {func: functools.partial(_cast_first, func) for func in arithmetic}
    try:
        import bitsandbytes  # noqa: F401  registers its operators
    except ImportError:
        return found
    ops = torch.ops.bitsandbytes
    return found | {
        ops.gemm_4bit.default: _gemm_4bit,
        ops.int8_vectorwise_quant.default: _vectorwise_quant,
        ops.int8_mixed_scaled_mm.default: _mixed_scaled_mm,
        ops.int8_scaled_mm.default: _scaled_mm,
    }


def workspaces(*, on_gpu: bool = True) -> Mapping[Any, Callable[..., Any]]:
    """By operator, what a GPU's kernel allocates and frees before it returns, as shapes and dtypes."""
    flashes = (FLASH_BACKWARD.default, FLASH_CPU_BACKWARD.default) if on_gpu else ()
    return dict.fromkeys(flashes, backward_workspace)


def _scatter_add(into: torch.Tensor, dim: int, index: torch.Tensor, values: torch.Tensor) -> Any:
    """In place in a backward, as that of ``gather`` is. Of tensors like these, which are subclasses, it makes a copy:
    ``gather_backward`` of pytorch 2.13 (``aten/src/ATen/native/TensorAdvancedIndexing.cpp``)."""
    return NotImplemented if torch.is_grad_enabled() else into.scatter_add_(dim, index, values)


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


def flash_attn_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
    """In place of ``flash_attn.flash_attn_func``; tensors are (rows, tokens, heads, width)."""
    return flash_attn_varlen_func(q, k, v, None, None, q.shape[1], k.shape[1], **options)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> torch.Tensor:
    """In place of ``flash_attn.flash_attn_varlen_func``; tensors are (tokens, heads, width), of all documents."""
    longest, sides = (int(max_seqlen_q), int(max_seqlen_k)), {}
    if window_size != (-1, -1):
        left, right = window_size
        sides = {"window_size_left": left, "window_size_right": 0 if causal else right}
    bounds = cu_seqlens_q, cu_seqlens_k
    return FLASH_FORWARD(q, k, v, *bounds, *longest, dropout_p, causal, False, scale=softmax_scale, **sides)[0]


def backward_workspace(func: Any, args: Sequence[Any]) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """What the backward allocates for itself: the query's gradient summed in float32, a float32 per head and token, and
    where heads share keys, keys' and values' gradients of each head."""
    query, key = args[1], args[2]
    heads_first = func.overloadpacket is FLASH_CPU_BACKWARD
    if heads_first:
        query, key = query.transpose(1, 2), key.transpose(1, 2)
    bounds = None if heads_first else args[6]
    heads, width = query.shape[-2:]
    wide = _rounded(width, _WIDTH) if width <= 192 else _WIDEST
    rows = () if bounds is not None else (query.shape[0],)
    tokens = _rounded(query.shape[1], _ROWS) if bounds is None else query.shape[0] + _ROWS * (bounds.numel() - 1)
    means, sums = (*rows, heads, tokens), (*rows, tokens, heads, wide)
    found: list[tuple[tuple[int, ...], torch.dtype]] = [(means, torch.float32), (sums, torch.float32)]
    if key.shape[-2] != heads:
        found += [((*key.shape[:-2], heads, width), key.dtype)] * 2
    return found


def attended_pairs(bounds: Sequence[int], *, causal: bool, window: int | None = None) -> float:
    pairs = 0.0
    for start, end in pairwise(bounds):
        length = end - start
        seen = length if window is None else min(length, window)
        pairs += seen * length - seen * seen / 2 if causal else length * length
    return pairs


def flash_flops(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    """2 products of each pair in a head's width in the forward, 5 in the backward, scores computed once more."""
    backward = func.overloadpacket is FLASH_BACKWARD
    query = args[1] if backward else args[0]
    bounds, causal = (args[6], args[11]) if backward else (args[3], args[8])
    heads, width = query.shape[-2:]
    if bounds is None:
        rows, tokens = query.shape[:2]
        ends = range(0, rows * tokens + 1, tokens)
    else:
        ends = bounds.tolist()
    left = kwargs.get("window_size_left")
    pairs = attended_pairs(ends, causal=bool(causal), window=None if left is None else int(left) + 1)
    return round((10 if backward else 4) * heads * width * pairs)


def _rounded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
