"""Liger's kernels (liger-kernel 0.6) on tensors without values: what each saves, returns and writes in place.

Source: ``liger_kernel/ops`` on GitHub (linkedin/Liger-Kernel): ``rms_norm.py``, ``rope.py``, ``swiglu.py``,
``cross_entropy.py``, ``fused_linear_cross_entropy.py``. Each kernel is one operator of torch that reads and writes as
many bytes; products are torch's own there as well.
"""

from typing import Any

import torch
from torch import Tensor


class RmsNorm(torch.autograd.Function):
    """Saves its input and a float32 per row; the backward writes into the gradient that it gets."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor) -> Tensor:
        scales = values.new_empty(values.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(values, weight, scales)
        return values * weight.to(values.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        values, weight, _ = ctx.saved_tensors
        gradient = grads[0].contiguous()
        of_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        return gradient.mul_(values), of_weight


class Rope(torch.autograd.Function):
    """Turns query and key in place, there and back; saves cosines and sines."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cosines, sines)
        turned = [one.transpose(1, 2).contiguous().neg_().transpose(1, 2) for one in (query, key)]
        return turned[0], turned[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        turned = [one.transpose(1, 2).contiguous().neg_().transpose(1, 2) for one in grads]
        return turned[0], turned[1], None, None


class GatedProduct(torch.autograd.Function):
    """``silu(gate) * up``: saves both, and the backward writes into them."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return gate * up

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        return gate.detach().mul_(grads[0]), up.detach().mul_(grads[0])


class CrossEntropy(torch.autograd.Function):
    """(tokens, vocabulary) to a loss; the gradient takes the place of the logits in the forward."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        losses = logits.new_zeros(logits.shape[0], dtype=torch.float32)
        logits.detach().neg_()
        ctx.save_for_backward(logits.detach())
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (ctx.saved_tensors[0],)


class FusedLinearCrossEntropy(torch.autograd.Function):
    """Hidden states (tokens, width) and the head's weight to a loss, by chunks of tokens; gradients in the forward."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        tokens, width = hidden.shape
        of_hidden = torch.zeros_like(hidden)
        of_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        losses = hidden.new_zeros(tokens, dtype=torch.float32)
        size = chunk_rows(tokens, width, weight.shape[0])
        for start in range(0, tokens, size):
            part = hidden[start : start + size]
            logits = part @ weight.to(part.dtype).t()
            logits.neg_()
            of_hidden[start : start + size].copy_(logits @ weight.to(part.dtype))
            if of_weight is not None:
                of_weight.add_(logits.t() @ part)
        ctx.save_for_backward(of_hidden, of_weight)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        of_hidden, of_weight = ctx.saved_tensors
        return of_hidden, of_weight


def chunk_rows(tokens: int, width: int, vocabulary: int) -> int:
    """Tokens whose logits are there at once: as many as take the bytes of the hidden states, to the next power of 2."""
    chunks = -(-vocabulary // width)
    return 1 << (-(-tokens // chunks) - 1).bit_length()
