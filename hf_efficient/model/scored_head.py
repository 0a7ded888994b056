"""The LM head and its loss on target positions alone, by pieces of the vocabulary-wide logits, in torch's operators.

TRL's fused head does this by Triton kernels on a GPU. Elsewhere it projects every position, and once more in the
backward. Here, where the head is frozen, the forward also leaves the gradient of the hidden states, so that nothing is
computed twice:

    z = scale h W' + b, capped          p = softmax(z / T)
    log p(y) = (z_y - max z) / T + log max p         d log p(y) / dz = (1_y - p) / T
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import trl.trainer.utils
from torch import Tensor
from trl.trainer.utils import maybe_gather_lm_head_ctx

from hf_efficient.facts.environment import replaced

_LOGITS_AT_ONCE = 2**24  # logits of a piece: 64 MiB in float32
_LOGITS_IN_CACHE = 2**20
"""Logits of a block on a CPU, whose softmax stays in the cache: 1,364 targets of a vocabulary of 49,152 took 243 ms in
place of 398 ms (bfloat16, forward and backward, two threads of an AMD EPYC with AVX512-BF16, torch 2.13)."""


@contextmanager
def scored_head(positions: Tensor) -> Iterator[None]:
    """Within it, TRL's fused head computes by :class:`_ScoredTokens`. ``positions``: of ``target_positions``."""

    class Head:
        @staticmethod
        def apply(
            hidden: Tensor,
            weight: Tensor,
            bias: Tensor | None,
            targets: Tensor,
            temperature: float,
            chunk_size: int,
            softcap: float | None = None,
            logit_scale: float = 1.0,
            outputs: tuple[str, ...] = (),
        ) -> tuple[Tensor | None, ...]:
            logits = _Logits(logit_scale, softcap, 1 / temperature)
            top1 = "is_top1" in outputs
            log_probs, is_top1 = _ScoredTokens.apply(hidden, weight, bias, targets, positions, logits, top1)
            return log_probs, None, None, None, is_top1 if top1 else None

    with replaced(trl.trainer.utils, "_ChunkedLogProbFunction", Head):
        yield


def target_positions(labels: Tensor) -> Tensor:
    """Where the next token is a target, among all positions but each row's last, flattened; of (rows, tokens)."""
    return (labels[:, 1:] != -100).flatten().nonzero().flatten()


class _Logits(NamedTuple):
    """From the product with the head's weight to the logits of the softmax."""

    scale: float
    cap: float | None
    inverse_temperature: float

    def score(
        self, product: Tensor, wanted: Tensor, with_top1: bool, with_slopes: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Float32 log-probabilities (N, 1) of the targets ``wanted`` (N, 1), and whether each is the most likely token.
        ``with_slopes``, ``product`` (N, vocabulary) becomes the gradient of minus the log-probabilities in it."""
        rows = max(1, _LOGITS_IN_CACHE // product.shape[1]) if product.device.type == "cpu" else product.shape[0]
        scores, is_top1 = [], []
        for block, target in zip(product.split(rows), wanted.split(rows), strict=True):
            logits, slope = self._of(block)
            probabilities = logits.softmax(-1)
            scores.append(logits.gather(1, target) - logits.amax(-1, True) + probabilities.amax(-1, True).log())
            if with_top1:
                is_top1.append(logits.argmax(-1, True) == target)
            if with_slopes:
                probabilities.scatter_add_(1, target, probabilities.new_full(target.shape, -1.0))
                plain = isinstance(slope, float) and slope == 1.0
                block.copy_(probabilities if plain else probabilities.mul_(slope))
        return torch.cat(scores), torch.cat(is_top1) if with_top1 else None

    def _of(self, product: Tensor) -> tuple[Tensor, Tensor | float]:
        """The logits in float32, and their slope in the product."""
        slope = self.scale * self.inverse_temperature
        if self.cap is None:
            return product.float() if slope == 1.0 else product.float() * slope, slope
        bent = torch.tanh(product.float() * (self.scale / self.cap))
        return bent * (self.cap * self.inverse_temperature), (1 - bent * bent) * slope


class _ScoredTokens(torch.autograd.Function):
    """Log-probabilities of the targets (N,), 0 elsewhere, and whether each is the most likely token."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        positions: Tensor,
        logits: _Logits,
        with_top1: bool,
    ) -> tuple[Tensor, Tensor | None]:
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        weight_used, bias_used = weight.to(dtype), None if bias is None else bias.to(dtype)
        scores = hidden.new_zeros(hidden.shape[0], dtype=torch.float32)
        is_top1 = torch.zeros_like(scores, dtype=torch.bool) if with_top1 else None
        needs = ctx.needs_input_grad
        at_once = torch.zeros_like(hidden) if needs[0] and not (needs[1] or needs[2]) else None
        for part, product in _pieces(hidden, weight_used, bias_used, positions):
            found, top1 = logits.score(product, targets[part][:, None], with_top1, at_once is not None)
            scores[part] = found[:, 0]
            if is_top1 is not None and top1 is not None:
                is_top1[part] = top1[:, 0]
            if at_once is not None:
                at_once[part] = (product @ weight_used).neg_().to(hidden.dtype)
        ctx.logits, ctx.dtype = logits, dtype
        if at_once is not None:
            ctx.save_for_backward(at_once)
        else:
            ctx.save_for_backward(hidden, weight, bias, targets, positions)
        if is_top1 is not None:
            ctx.mark_non_differentiable(is_top1)
        return scores, is_top1

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        given, saved, rest = grads[0][:, None], ctx.saved_tensors, (None,) * 4
        if len(saved) == 1:
            return (saved[0] * given).to(saved[0].dtype), None, None, *rest
        with maybe_gather_lm_head_ctx(*saved[1:3]):  # ZeRO-3 has taken the head apart again after the forward
            return *_recomputed(ctx, saved, given), *rest


def _recomputed(ctx: Any, saved: tuple[Any, ...], given: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients of hidden states, weight and bias of a head that is trained; ``given`` is that of the scores."""
    hidden, weight, bias, targets, positions = saved
    weight_used, bias_used = weight.to(ctx.dtype), None if bias is None else bias.to(ctx.dtype)
    grad_hidden = torch.zeros_like(hidden)
    grad_weight = torch.zeros_like(weight, dtype=torch.float32)
    grad_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
    for part, slopes in _pieces(hidden, weight_used, bias_used, positions):
        ctx.logits.score(slopes, targets[part][:, None], False, True)
        grad_hidden[part] = ((slopes @ weight_used) * -given[part]).to(hidden.dtype)
        grad_weight += slopes.t() @ (hidden[part] * -given[part]).to(ctx.dtype)
        if grad_bias is not None:
            grad_bias -= (slopes.float().t() @ given[part])[:, 0]
    grad_bias = None if grad_bias is None or bias is None else grad_bias.to(bias.dtype)
    return grad_hidden, grad_weight.to(weight.dtype), grad_bias


def _pieces(hidden: Tensor, weight: Tensor, bias: Tensor | None, positions: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Some positions, and the product of their hidden states with the head's weight, in the same memory each time."""
    at_once = max(1, min(len(positions), _LOGITS_AT_ONCE // weight.shape[0]))
    memory = weight.new_empty(at_once, weight.shape[0])
    for part in positions.split(at_once):
        operands, out = (hidden[part].to(weight.dtype), weight.t()), memory[: len(part)]
        yield part, torch.mm(*operands, out=out) if bias is None else torch.addmm(bias, *operands, out=out)
