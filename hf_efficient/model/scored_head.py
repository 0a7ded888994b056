"""The LM head and its loss on target positions alone, by pieces of the vocabulary-wide logits, in torch's operators.

TRL's fused head does this by Triton kernels on a GPU. Elsewhere it projects every position, and once more in the
backward. Here, where the head is frozen, the forward also leaves the gradient of the hidden states, so that nothing is
computed twice:

    z = scale h W' + b, capped          p = softmax(z / T)
    log p(y) = z_y / T - log sum exp(z / T)          d log p(y) / dz = (1_y - p) / T
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import trl.trainer.utils
from trl.trainer.utils import maybe_gather_lm_head_ctx

from hf_efficient.facts.libraries import replaced

_LOGITS_AT_ONCE = 2**24  # logits of a piece: 64 MiB in float32


@contextmanager
def scored_head(positions: torch.Tensor) -> Iterator[None]:
    """Within it, TRL's fused head computes by :class:`_ScoredTokens`. ``positions`` are those of the targets among all
    positions but each row's last, flattened."""

    class Head:
        @staticmethod
        def apply(
            hidden: torch.Tensor,
            weight: torch.Tensor,
            bias: torch.Tensor | None,
            targets: torch.Tensor,
            temperature: float,
            chunk_size: int,
            softcap: float | None = None,
            logit_scale: float = 1.0,
            outputs: tuple[str, ...] = (),
        ) -> tuple[torch.Tensor | None, ...]:
            logits = _Logits(logit_scale, softcap, 1 / temperature)
            top1 = "is_top1" in outputs
            log_probs, is_top1 = _ScoredTokens.apply(hidden, weight, bias, targets, positions, logits, top1)
            return log_probs, None, None, None, is_top1 if top1 else None

    with replaced(trl.trainer.utils, "_ChunkedLogProbFunction", Head):
        yield


def target_positions(labels: torch.Tensor) -> torch.Tensor:
    """Where the next token is a target, among all positions but each row's last, flattened; ``labels`` is (rows,
    tokens), -100 where no loss is taken."""
    return (labels[:, 1:] != -100).flatten().nonzero().flatten()


class _Logits(NamedTuple):
    """From the product with the head's weight to the logits of the softmax."""

    scale: float
    cap: float | None
    inverse_temperature: float

    def log_probs(
        self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | float]:
        """Float32 log-probabilities (positions, vocabulary), and the slope of the logits in the product."""
        logits = hidden @ weight.t() if bias is None else torch.addmm(bias, hidden, weight.t())
        slope: torch.Tensor | float = self.scale * self.inverse_temperature
        if self.cap is not None:
            bent = torch.tanh(logits.float() * (self.scale / self.cap))
            logits, slope = bent * (self.cap * self.inverse_temperature), (1 - bent * bent) * slope
        elif slope != 1.0:
            logits = logits.float() * slope
        return torch.log_softmax(logits, -1, dtype=torch.float32), slope


class _ScoredTokens(torch.autograd.Function):
    """Log-probabilities of the targets (N,), 0 elsewhere, and whether each is the most likely token."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        positions: torch.Tensor,
        logits: _Logits,
        with_top1: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        dtype = _compute_dtype(hidden)
        weight_used, bias_used = weight.to(dtype), None if bias is None else bias.to(dtype)
        scores = hidden.new_zeros(hidden.shape[0], dtype=torch.float32)
        is_top1 = torch.zeros_like(scores, dtype=torch.bool) if with_top1 else None
        needs = ctx.needs_input_grad
        at_once = torch.zeros_like(hidden) if needs[0] and not (needs[1] or needs[2]) else None
        for part in positions.split(_piece(weight)):
            wanted = targets[part][:, None]
            log_probs, slope = logits.log_probs(hidden[part].to(dtype), weight_used, bias_used)
            scores[part] = log_probs.gather(1, wanted)[:, 0]
            if is_top1 is not None:
                is_top1[part] = log_probs.argmax(-1) == wanted[:, 0]
            if at_once is not None:
                at_once[part] = (_slopes(log_probs, wanted, slope).to(dtype) @ weight_used).to(hidden.dtype)
        ctx.logits, ctx.dtype = logits, dtype
        if at_once is not None:
            ctx.save_for_backward(at_once)
        else:
            ctx.save_for_backward(hidden, weight, bias, targets, positions)
        if is_top1 is not None:
            ctx.mark_non_differentiable(is_top1)
        return scores, is_top1

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        given, saved, rest = grads[0][:, None], ctx.saved_tensors, (None,) * 4
        if len(saved) == 1:
            return saved[0] * given.to(saved[0].dtype), None, None, *rest
        with maybe_gather_lm_head_ctx(*saved[1:3]):  # ZeRO-3 has taken the head apart again after the forward
            return *_recomputed(ctx, saved, given), *rest


def _recomputed(
    ctx: Any, saved: tuple[Any, ...], given: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The gradients of hidden states, weight and bias of a head that is trained; ``given`` is that of the scores."""
    hidden, weight, bias, targets, positions = saved
    weight_used, bias_used = weight.to(ctx.dtype), None if bias is None else bias.to(ctx.dtype)
    grad_hidden = torch.zeros_like(hidden)
    grad_weight = torch.zeros_like(weight, dtype=torch.float32)
    grad_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
    for part in positions.split(_piece(weight)):
        rows = hidden[part].to(ctx.dtype)
        log_probs, slope = ctx.logits.log_probs(rows, weight_used, bias_used)
        slopes = _slopes(log_probs, targets[part][:, None], slope).mul_(given[part])
        if grad_bias is not None:
            grad_bias += slopes.sum(0)
        slopes = slopes.to(ctx.dtype)
        grad_hidden[part] = (slopes @ weight_used).to(hidden.dtype)
        grad_weight += slopes.t() @ rows
    grad_bias = None if grad_bias is None or bias is None else grad_bias.to(bias.dtype)
    return grad_hidden, grad_weight.to(weight.dtype), grad_bias


def _compute_dtype(hidden: torch.Tensor) -> torch.dtype:
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype


def _piece(weight: torch.Tensor) -> int:
    return max(1, _LOGITS_AT_ONCE // weight.shape[0])


def _slopes(log_probs: torch.Tensor, wanted: torch.Tensor, slope: torch.Tensor | float) -> torch.Tensor:
    """The gradient of the targets' log-probabilities in the product, in the storage of ``log_probs``."""
    probabilities = log_probs.exp_()
    probabilities.scatter_add_(1, wanted, probabilities.new_full(wanted.shape, -1.0))
    return probabilities.neg_() if isinstance(slope, float) and slope == 1.0 else probabilities.mul_(-slope)
