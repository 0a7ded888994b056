"""FlashAttention on tensors without values: what its kernels save, return, and need beside that.

torch has the same kernels as operators, whose meta functions know the shapes: the output, and a float32 per head and
token (``softmax_lse``). What the backward takes for itself is from the source of both (``mha_bwd`` and
``mha_varlen_bwd`` of ``csrc/flash_attn/flash_api.cpp``, FlashAttention 2.7; torch 2.13 has a copy).
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

_aten = torch.ops.aten
FORWARD = _aten._flash_attention_forward
BACKWARD = _aten._flash_attention_backward
CPU_BACKWARD = _aten._scaled_dot_product_flash_attention_for_cpu_backward
"""What a simulation runs in place of the kernel that ``scaled_dot_product_attention`` takes on a GPU."""
_ROWS = 128
_WIDTH = 32
_WIDEST = 256


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
    """In place of ``flash_attn.flash_attn_varlen_func``; tensors are (tokens, heads, width), documents one after the
    other, and none sees another."""
    longest, sides = (int(max_seqlen_q), int(max_seqlen_k)), {}
    if window_size != (-1, -1):
        left, right = window_size
        sides = {"window_size_left": left, "window_size_right": 0 if causal else right}
    bounds = cu_seqlens_q, cu_seqlens_k
    out: torch.Tensor = FORWARD(q, k, v, *bounds, *longest, dropout_p, causal, False, scale=softmax_scale, **sides)[0]
    return out


def backward_workspace(func: Any, args: Sequence[Any]) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and dtypes of what the backward allocates for itself: the query's gradient summed in float32, a float32
    per head and token, and where heads share keys, keys' and values' gradients of each head."""
    query, key = args[1], args[2]
    heads_first = func.overloadpacket is CPU_BACKWARD
    if heads_first:
        query, key = query.transpose(1, 2), key.transpose(1, 2)
    bounds = None if heads_first else args[6]
    heads, width = query.shape[-2:]
    wide = _rounded(width, _WIDTH) if width <= 192 else _WIDEST
    sums: tuple[int, ...]
    means: tuple[int, ...]
    if bounds is None:
        rows, tokens = query.shape[0], _rounded(query.shape[1], _ROWS)
        sums, means = (rows, tokens, heads, wide), (rows, heads, tokens)
    else:
        padded = query.shape[0] + _ROWS * (bounds.numel() - 1)
        sums, means = (padded, heads, wide), (heads, padded)
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
    """Of ``FORWARD`` and ``BACKWARD``: 2 and 5 products of each pair in a head's width (the backward computes the
    scores once more)."""
    backward = func.overloadpacket is BACKWARD
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
