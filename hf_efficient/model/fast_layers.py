"""Layers of a frozen base as one autograd function each, in place of operators that each read and save a tensor.

LoRA on a linear layer saves its input and the rank-r product alone, and adds in place. A 4-bit base is dequantized once
in the forward and once in the backward:

    y = x W' + s (x A') B'          dx = dy W + s (dy B) A
    dA = s (dy B)' x                dB = s dy' (x A')

A frozen RMSNorm saves n = x / r alone, with r the root of mean(x x) + eps over H features:

    y = n w                         dx = (dy w - n mean(dy w n)) / r

Attention goes document by document: packed rows without the pairs of tokens that belong to two documents. transformers
computes a packed row under a block mask, with work in the square of the row. Here each document is a causal attention
of its own, one after the other; it has been run on CPUs only. A batch with a padding mask, or a filled cache, goes to
transformers' own ``sdpa``.
"""

import functools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from hf_efficient.errors import ModelError


def fuse_lora(model: nn.Module) -> tuple[int, dict[str, int]]:
    """Let the LoRA layers of a PEFT model compute by :class:`_LoraLinear` wherever that gives PEFT's own result. Other
    calls (disabled, merged or several adapters, mixed dtypes without autocast) stay PEFT's. Calling it again changes
    nothing. Returns how many layers are fused, and how many are not by reason."""
    from peft.tuners.lora import LoraLayer

    fused, left = 0, Counter[str]()
    for module in model.modules():
        if not isinstance(module, LoraLayer):
            continue
        reason = _reason_against(module)
        if reason is not None:
            left[reason] += 1
            continue
        if not isinstance(module, _FusedLora):
            module.__class__ = _with(_FusedLora, type(module))
        fused += 1
    return fused, dict(left)


def fuse_norms(model: nn.Module) -> int:
    """Let every frozen RMSNorm that computes as Llama's does use :class:`_FrozenNorm`; returns how many."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    def computes(forward: Any) -> tuple[Any, ...] | None:
        """The same of two functions that compute the same; transformers writes one norm's code into many models."""
        code = getattr(forward, "__code__", None)
        return code and (code.co_code, code.co_names, code.co_consts)

    fused, wanted = 0, computes(LlamaRMSNorm.forward)
    for module in model.modules():
        kind: Any = type(module)
        if computes(kind.forward) == wanted and not module.weight.requires_grad:
            module.__class__ = _with(_FusedNorm, kind)
            fused += 1
    return fused


@functools.cache
def _with(forward: type, kind: Any) -> type:
    """The class of a layer, with another forward. Were it a function of each layer, ``torch.compile`` would compile it
    for each layer anew."""
    return type(kind.__name__, (forward, kind), {})


class _Fused:
    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle, which finds classes by their names."""
        return _unpickled, type(self).__bases__, self.__dict__


def _unpickled(forward: type, kind: Any) -> Any:
    joined: Any = _with(forward, kind)
    return joined.__new__(joined)


class _FusedNorm(_Fused):
    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        if self.weight.requires_grad:  # unfrozen since
            return super().forward(hidden_states)  # type: ignore[misc]
        return _FrozenNorm.apply(hidden_states, self.weight, self.variance_epsilon)


class _FrozenNorm(torch.autograd.Function):
    """``x`` (..., H), normalised in float32 and rounded to its dtype, times the weight (H)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        exact = x.float()
        root = torch.linalg.vector_norm(exact, dim=-1, keepdim=True)
        inverse = root.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
        normed = (exact * inverse if exact is x else exact.mul_(inverse)).to(x.dtype)
        ctx.save_for_backward(normed, inverse, weight)
        return weight * normed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        normed, inverse, weight = ctx.saved_tensors
        grad = (grads[0] * weight).float()
        exact = normed.float()
        along = (grad * exact).mean(-1, keepdim=True)
        return grad.addcmul_(exact, along, value=-1).mul_(inverse).to(normed.dtype), None, None


def _reason_against(layer: Any) -> str | None:
    base = layer.get_base_layer()
    if type(base) is not nn.Linear and not _is_four_bit(base):
        return f"its base is a {type(base).__name__}"
    if any(parameter.requires_grad for parameter in base.parameters()):
        return "its base is trained"
    if layer.lora_variant:
        return "its adapter is a variant of LoRA"
    return "its adapter has a bias" if any(b.bias is not None for b in layer.lora_B.values()) else None


def _is_four_bit(base: nn.Module) -> bool:
    return type(base).__name__ == "Linear4bit"


class _FusedLora(_Fused):
    def forward(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """PEFT's own where the call is not the plain one."""
        active, dtype = self.active_adapters, None
        if not (args or kwargs or self.disable_adapters or self.merged) and len(active) == 1:
            dtype = _product_dtype(x, self, active[0])
        if dtype is None:
            return super().forward(x, *args, **kwargs)  # type: ignore[misc]
        name, base = active[0], self.get_base_layer()
        dropout = self.lora_dropout[name]
        dropped = dropout(x) if self.training and isinstance(dropout, nn.Dropout) and dropout.p > 0 else None
        a, b = self.lora_A[name].weight, self.lora_B[name].weight
        compute = _not_compiled if _is_four_bit(base) else _LoraLinear.apply
        return compute(x, dropped, a, b, base.weight, base.bias, self.scaling[name], dtype)


@torch.compiler.disable  # torch.compile would compile a weight's four bits for each layer anew
def _not_compiled(*args: Any) -> Tensor:
    return _LoraLinear.apply(*args)


def _product_dtype(x: Tensor, layer: Any, name: str) -> torch.dtype | None:
    """What all products are computed in: autocast's dtype, or that of base and adapter; None where those differ."""
    is_trained = layer.get_base_layer().weight.requires_grad
    if name not in layer.lora_A or layer.lora_B[name].bias is not None or is_trained:  # added or unfrozen since
        return None
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    base, adapter = layer.get_base_layer(), layer.lora_A[name].weight.dtype
    weight = (base.compute_dtype or x.dtype) if _is_four_bit(base) else base.weight.dtype
    return adapter if weight == adapter == x.dtype else None


def _dense(weight: Any, dtype: torch.dtype) -> Tensor:
    """A weight (out, in), dequantized where it is in four bits."""
    state = getattr(weight, "quant_state", None)
    if state is None:
        return weight.to(dtype)
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(weight.data, state).to(dtype)


class _LoraLinear(torch.autograd.Function):
    """``x`` (..., in) to (..., out). ``dropped`` is what the adapter sees where dropout took part of it."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        dropped: Tensor | None,
        a: Tensor,
        b: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        scaling: float,
        dtype: torch.dtype,
    ) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).to(dtype)
        seen = rows if dropped is None else dropped.reshape(rows.shape).to(dtype)
        dense = _dense(weight, dtype)
        out = rows @ dense.t() if bias is None else torch.addmm(bias.to(dtype), rows, dense.t())
        inner = seen @ a.to(dtype).t()
        out.addmm_(inner, b.to(dtype).t(), alpha=scaling)
        ctx.save_for_backward(seen, inner, a, b)
        ctx.weight, ctx.scaling, ctx.dtype = weight, scaling, dtype
        ctx.in_dtype, ctx.has_dropout = x.dtype, dropped is not None
        return out.view(*x.shape[:-1], out.shape[-1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        seen, inner, a, b = ctx.saved_tensors
        shape = (*grads[0].shape[:-1], seen.shape[-1])
        grad = grads[0].reshape(-1, grads[0].shape[-1]).to(ctx.dtype)
        grad_inner = (grad @ b.to(ctx.dtype)).mul_(ctx.scaling)
        grad_b = (grad.t() @ inner).to(b.dtype).mul_(ctx.scaling)
        grad_a = (grad_inner.t() @ seen).to(a.dtype)
        grad_x = grad_dropped = None
        if ctx.needs_input_grad[0]:
            grad_x = grad @ _dense(ctx.weight, ctx.dtype)
            if not ctx.has_dropout:
                grad_x.addmm_(grad_inner, a.to(ctx.dtype))
            grad_x = grad_x.view(shape).to(ctx.in_dtype)
        if ctx.has_dropout and ctx.needs_input_grad[1]:
            grad_dropped = (grad_inner @ a.to(ctx.dtype)).view(shape).to(ctx.in_dtype)
        return grad_x, grad_dropped, grad_a, grad_b, None, None, None, None


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
        AttentionMaskInterface.register(NAME, _begins)
    return name


_OWN_MASKS = ("doge",)  # computes with the mask that it is handed


@contextmanager
def checked_attention(name: str | None) -> Iterator[list[Any]]:
    """Within, a model is built, and put into the list. ``ModelError``: ``name`` is ours, and this model's attention has
    soft caps, sinks or a mask of its own, which would be left out, or cannot be replaced."""
    built: list[Any] = []
    try:
        yield built
    except KeyError as error:  # from a table of the model's own attention classes
        if name != NAME or error.args != (NAME,):
            raise
        raise _refusal("this model", "sdpa") from error
    for model in built if name == NAME else ():
        if not model._supports_sdpa or model.config.model_type in _OWN_MASKS:
            raise _refusal(f"{type(model).__name__}, which has soft caps, sinks or a mask of its own", "eager")


def _refusal(model: str, instead: str) -> ModelError:
    return ModelError(
        f"model.attn_implementation: {NAME} (what auto means for packed rows on a CPU) cannot compute the attention of "
        f"{model}. Write `model.attn_implementation: {instead}` and `train.packing: false`."
    )


_ALL = torch.iinfo(torch.int32).max  # a token sees as many of its document


@torch.compiler.disable  # it has as many values as there are tokens, at worst
def _begins(*args: Any, **kwargs: Any) -> Tensor | None:
    """In place of a mask, where documents begin: there, how many tokens back one sees at most, itself included; 0
    elsewhere. (rows, 1, 1, tokens) in int32, as no mask of transformers is. The mask that transformers would make is
    asked for each token's neighbours, and for one token of the longest document, not for all pairs. One that is not
    causal within documents, or has padding, is transformers' own for ``sdpa``."""
    if args or kwargs.get("attention_mask") is not None or kwargs.get("use_vmap"):
        return sdpa_mask(*args, **kwargs)
    tokens, seen = kwargs["q_length"], kwargs["mask_function"]
    if tokens != kwargs["kv_length"]:
        return sdpa_mask(**kwargs)
    rows = torch.arange(kwargs["batch_size"], device=kwargs["device"])[:, None]
    before = torch.arange(tokens - 1, device=kwargs["device"])[None]
    if tokens > 1 and bool(seen(rows, 0, before, before + 1).any()):
        return sdpa_mask(**kwargs)
    begins = F.pad(~seen(rows, 0, before + 1, before).expand(len(rows), -1), (1, 0), value=True)
    bounds = [*begins.flatten().nonzero().flatten().tolist(), begins.numel()]
    length, start = max((end - start, start) for start, end in pairwise(bounds))
    own = torch.arange(start % tokens, start % tokens + length, device=kwargs["device"])
    window = int(seen(torch.full_like(own, start // tokens), 0, own[-1:], own).sum())
    return (begins * (window if window < length else _ALL)).to(torch.int32)[:, None, None]


@torch.compiler.disable  # torch.compile would compile it for every length of a document
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
    ``query`` is (rows, heads, tokens, width); ``key`` and ``value`` may have fewer heads. Documents begin, and reach,
    as the mask of :func:`_begins` says, and also begin where ``cu_seq_lens_q`` or ``position_ids`` do."""
    rows, _, tokens, _ = query.shape
    causal = getattr(module, "is_causal", True) and kwargs.get("is_causal") is not False and tokens == key.shape[2]
    if attention_mask is None and causal:
        far = kwargs.get("sliding_window") or _ALL
        first = torch.arange(tokens, device=query.device) == 0
        attention_mask = (first * far).to(torch.int32).repeat(rows, 1, 1, 1)
    if attention_mask is None or attention_mask.dtype != torch.int32 or kwargs.get("softcap") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    bounds = _bounds(attention_mask, kwargs.get("cu_seq_lens_q"), kwargs.get("position_ids"))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    window = int(attention_mask[0, 0, 0, 0])
    if rows > 1:
        query, key, value = (one.transpose(0, 1).flatten(1, 2)[None] for one in (query, key, value))
    mixes = query.device.type == "cpu" and query.dtype != torch.float32 and not dropout
    lengths, parts = [end - start for start, end in pairwise(bounds)], []
    for one in zip(query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True):
        direct = mixes and one[0].shape[2] <= _LONGEST_DIRECT
        parts.append(_Direct.apply(*one, scale, window) if direct else _flash(*one, scale, window, dropout))
    out = parts[0] if mixes and len(parts) == 1 else torch.cat(parts, 2)
    return out.transpose(1, 2).reshape(rows, tokens, out.shape[1], out.shape[3]).contiguous(), None


def _bounds(begins: Tensor, cumulative: Tensor | None, position_ids: Tensor | None) -> list[int]:
    """Where documents begin in the rows laid end to end, and the end of the last one. With a cache, transformers' mask
    does not know of documents."""
    begins = begins[:, 0, 0] > 0
    rows, tokens = begins.shape
    if position_ids is not None and position_ids.dim() == 2:
        begins[:, 1:] |= (position_ids.diff() != 1).expand(rows, -1)
    begins = begins.flatten()
    if cumulative is not None:
        begins[cumulative[cumulative < len(begins)].long()] = True
    return [*begins.nonzero().flatten().tolist(), rows * tokens]


def _flash(query: Tensor, key: Tensor, value: Tensor, scale: float, window: int, dropout: float) -> Tensor:
    length, grouped = query.shape[2], query.shape[1] != key.shape[1]
    mask = None if length <= window else _seen(length, window, query.device)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, scale=scale, enable_gqa=grouped
    )


def _seen(length: int, window: int | None, device: torch.device) -> Tensor:
    """Whether a token (row) sees another (column)."""
    seen = torch.ones(length, length, dtype=torch.bool, device=device).tril_()
    return seen if window is None else seen.triu_(1 - window)


_ALIGNED = 32  # keys of a document are padded to a multiple: a softmax over 171 numbers takes longer than over 192


@lru_cache(maxsize=64)  # the documents of a micro-batch, which all layers share; 2 MiB each at the most for 4 heads
def _bias(length: int, heads: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """0 where a token sees another, minus infinity elsewhere and in the columns of padding; repeated for heads under
    each other."""
    seen = F.pad(_seen(length, window, torch.device("cpu")), (0, -length % _ALIGNED))
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf")).repeat(heads, 1)


class _Direct(torch.autograd.Function):
    """softmax(q k' scale + causal) v of one document, in the dtype of ``query``, the softmax in float32."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int) -> Tensor:
        _, heads, length, _ = query.shape
        groups = key.shape[1]
        stacked = query.reshape(groups, -1, query.shape[-1])
        key, value = (F.pad(one[0], (0, 0, 0, -length % _ALIGNED)) for one in (key, value))
        bias = _bias(length, heads // groups, window if window < length else None, query.dtype)
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
