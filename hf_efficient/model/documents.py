"""Attention document by document: packed rows without the pairs of tokens that belong to two documents.

transformers computes a packed row under a block mask, with work in the square of the row. Here each document is a
causal attention of its own, one after the other; it has been run on CPUs only. A batch with a padding mask, or with a
cache, goes to transformers' own ``sdpa``.
"""

from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "documents"  # as ``attn_implementation``

_LONGEST_DIRECT = 512
"""Tokens of a document up to which products beat the CPU's flash kernel in half precision. They also keep their weights
for the backward, memory in the square of the length. Forward and backward of 9 heads of width 64, two threads of an AMD
EPYC with AVX512-BF16, torch 2.13: 150 tokens 0.6 ms against 4.1 ms, 512 tokens 3.6 ms against 13.7 ms, 1,024 tokens 16
ms against 30 ms."""


def known_attention(name: str) -> str:
    """An attention implementation, made known to transformers if it is this one; ``auto`` is transformers' default."""
    if name == "auto":
        return "sdpa"
    if name == NAME:
        AttentionInterface.register(NAME, documents_attention)
        AttentionMaskInterface.register(NAME, _mask)
    return name


def _mask(*args: Any, **kwargs: Any) -> Tensor | None:
    plain = kwargs.get("attention_mask") is None and not kwargs.get("use_vmap")
    if plain and kwargs.get("q_length") == kwargs.get("kv_length") and not args:
        return None
    return sdpa_mask(*args, **kwargs)


def documents_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each document of a row; the output is (rows, tokens, heads, width), without weights.
    ``query`` is (rows, heads, tokens, width); ``key`` and ``value`` may have fewer heads. The documents are those of
    ``cu_seq_lens_q`` (their bounds, on the host) where the batch has it, else those that ``position_ids`` begin."""
    cached = query.shape[2] != key.shape[2]
    if attention_mask is not None or cached or kwargs.get("softcap") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    rows, _, tokens, _ = query.shape
    bounds = _bounds(rows, tokens, kwargs.get("cu_seq_lens_q"), kwargs.get("position_ids"))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    window = kwargs.get("sliding_window")
    if rows > 1:
        query, key, value = (one.transpose(0, 1).flatten(1, 2)[None] for one in (query, key, value))
    mixes = query.device.type == "cpu" and query.dtype != torch.float32 and not dropout
    lengths, parts = [end - start for start, end in pairwise(bounds)], []
    for one in zip(query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True):
        direct = mixes and one[0].shape[2] <= _LONGEST_DIRECT
        parts.append(_Direct.apply(*one, scale, window) if direct else _flash(*one, scale, window, dropout))
    out = parts[0] if mixes and len(parts) == 1 else torch.cat(parts, 2)
    return out.transpose(1, 2).reshape(rows, tokens, out.shape[1], out.shape[3]), None


def _bounds(rows: int, tokens: int, cumulative: Any, position_ids: Tensor | None) -> tuple[int, ...]:
    """Where documents begin in the rows laid end to end, and the end of the last one."""
    if cumulative is not None:
        return tuple(cumulative.tolist())
    if position_ids is None:
        return tuple(range(0, rows * tokens + 1, tokens))
    positions = position_ids.expand(rows, tokens)
    goes_on = torch.zeros_like(positions, dtype=torch.bool)
    goes_on[:, 1:] = positions.diff(dim=1) == 1
    return (*(~goes_on).flatten().nonzero().flatten().tolist(), rows * tokens)


def _flash(query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None, dropout: float) -> Tensor:
    length, grouped = query.shape[2], query.shape[1] != key.shape[1]
    mask = None if window is None or length <= window else _bias(length, 1, window, torch.float32)[:, :length] == 0
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, scale=scale, enable_gqa=grouped
    )


_ALIGNED = 32  # keys of a document are padded to a multiple: a softmax over 171 numbers takes longer than over 192


@lru_cache(maxsize=64)  # the documents of a micro-batch, which all layers share
def _bias(length: int, heads: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """0 where a token (row) sees another (column), minus infinity elsewhere and in the columns of padding; repeated for
    heads under each other."""
    seen = torch.ones(length, length + -length % _ALIGNED, dtype=torch.bool).tril()
    if window is not None:
        seen = seen.triu(1 - window)
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf")).repeat(heads, 1)


class _Direct(torch.autograd.Function):
    """softmax(q k' scale + causal) v of one document, in the dtype of ``query``, the softmax in float32."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        _, heads, length, _ = query.shape
        groups = key.shape[1]
        stacked = query.reshape(groups, -1, query.shape[-1])
        key, value = (F.pad(one[0], (0, 0, 0, -length % _ALIGNED)) for one in (key, value))
        bias = _bias(length, heads // groups, window if window is not None and window < length else None, query.dtype)
        weights = torch.baddbmm(bias, stacked, key.transpose(1, 2), alpha=scale).softmax(-1)
        ctx.save_for_backward(stacked, key, value, weights)
        ctx.scale = scale
        return torch.bmm(weights, value).view(1, heads, length, value.shape[-1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        stacked, key, value, weights = ctx.saved_tensors
        length = grads[0].shape[2]
        grad = grads[0].reshape(key.shape[0], -1, value.shape[-1])
        grad_value = torch.bmm(weights.transpose(1, 2), grad)[None, :, :length]
        grad_weights = torch.bmm(grad, value.transpose(1, 2))
        grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
        grad_query = torch.bmm(grad_scores, key).mul_(ctx.scale).view(*grads[0].shape[:-1], key.shape[-1])
        grad_key = torch.bmm(grad_scores.transpose(1, 2), stacked).mul_(ctx.scale)[None, :, :length]
        return grad_query, grad_key, grad_value, None, None
