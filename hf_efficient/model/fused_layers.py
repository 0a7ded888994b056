"""Layers of a frozen base as one autograd function each, in place of operators that each read and save a tensor.

LoRA on a linear layer saves its input and the rank-r product alone, and adds in place. A 4-bit base is dequantized once
in the forward and once in the backward:

    y = x W' + s (x A') B'          dx = dy W + s (dy B) A
    dA = s (dy B)' x                dB = s dy' (x A')

A frozen RMSNorm saves n = x / r alone, with r the root of mean(x x) + eps over H features:

    y = n w                         dx = (dy w - n mean(dy w n)) / r
"""

import functools
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn


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
        if "forward" not in vars(module):
            module.forward = functools.partial(_fused_forward, module)
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
        if computes(type(module).forward) == wanted and not module.weight.requires_grad:
            module.forward = functools.partial(_norm, module)
            fused += 1
    return fused


def _norm(module: Any, hidden_states: Tensor) -> Tensor:
    return _FrozenNorm.apply(hidden_states, module.weight, module.variance_epsilon)


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
    if any(b.bias is not None for b in layer.lora_B.values()):
        return "its adapter has a bias"
    return None


def _is_four_bit(base: nn.Module) -> bool:
    return type(base).__name__ == "Linear4bit"


def _fused_forward(layer: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """PEFT's own where the call is not the plain one."""
    active, dtype = layer.active_adapters, None
    if not (args or kwargs or layer.disable_adapters or layer.merged) and len(active) == 1:
        dtype = _product_dtype(x, layer, active[0])
    if dtype is None:
        return type(layer).forward(layer, x, *args, **kwargs)
    name = active[0]
    dropout = layer.lora_dropout[name]
    dropped = dropout(x) if layer.training and isinstance(dropout, nn.Dropout) and dropout.p > 0 else None
    a, b = layer.lora_A[name].weight, layer.lora_B[name].weight
    return _LoraLinear.apply(x, dropped, a, b, layer.get_base_layer(), layer.scaling[name], dtype)


def _product_dtype(x: Tensor, layer: Any, name: str) -> torch.dtype | None:
    """What all products are computed in: autocast's dtype, or that of base and adapter; None where those differ."""
    if name not in layer.lora_A:
        return None
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    base, adapter = layer.get_base_layer(), layer.lora_A[name].weight.dtype
    weight = (base.compute_dtype or x.dtype) if _is_four_bit(base) else base.weight.dtype
    return adapter if weight == adapter == x.dtype else None


def _dense_weight(base: Any, dtype: torch.dtype) -> Tensor:
    """The weight (out, in) of a layer, dequantized where it is in four bits."""
    if not _is_four_bit(base):
        return base.weight.to(dtype)
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(base.weight.data, base.weight.quant_state).to(dtype)


class _LoraLinear(torch.autograd.Function):
    """``x`` (..., in) to (..., out). ``dropped`` is what the adapter sees where dropout took part of it."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dropped: Tensor | None, a: Tensor, b: Tensor, base: Any, scaling: float, dtype: torch.dtype
    ) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).to(dtype)
        seen = rows if dropped is None else dropped.reshape(rows.shape).to(dtype)
        weight = _dense_weight(base, dtype)
        out = rows @ weight.t() if base.bias is None else torch.addmm(base.bias.to(dtype), rows, weight.t())
        inner = seen @ a.to(dtype).t()
        out.addmm_(inner, b.to(dtype).t(), alpha=scaling)
        ctx.save_for_backward(seen, inner, a, b)
        ctx.base, ctx.scaling, ctx.dtype = base, scaling, dtype
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
            grad_x = grad @ _dense_weight(ctx.base, ctx.dtype)
            if not ctx.has_dropout:
                grad_x.addmm_(grad_inner, a.to(ctx.dtype))
            grad_x = grad_x.view(shape).to(ctx.in_dtype)
        if ctx.has_dropout and ctx.needs_input_grad[1]:
            grad_dropped = (grad_inner @ a.to(ctx.dtype)).view(shape).to(ctx.in_dtype)
        return grad_x, grad_dropped, grad_a, grad_b, None, None, None
