"""Libraries on tensors without values: what Liger's kernels (liger-kernel 0.6) save, return and write in place, and
what TRL's ``OffloadActivations`` (1.16) moves.

Source: ``liger_kernel/ops`` on GitHub (linkedin/Liger-Kernel): ``rms_norm.py``, ``rope.py``, ``swiglu.py``,
``cross_entropy.py``, ``fused_linear_cross_entropy.py``. Each kernel is one operator of torch that reads and writes as
many bytes; products are torch's own there as well.

Offloading: a saved tensor of a kilobyte or more goes to the host. The last few stay on the device while their copies
are under way. In the backward each comes back where it is used. Weights stay, and so does what the head saves.
"""

from collections import deque
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from hf_efficient.simulate.blank import Blank, storage_of


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


_LEAST_BYTES = 1024
_UNDER_WAY = 5
"""Saved tensors whose copies may be under way: ``max_fwd_stash_size``."""


class OffloadedActivations(saved_tensors_hooks):
    def __init__(self, model: nn.Module) -> None:
        self._weights = {storage_of(one)._cdata for one in (*model.parameters(), *model.buffers())}
        self._under_way: deque[_Moved] = deque(maxlen=_UNDER_WAY)
        super().__init__(self._pack, self._unpack)

    def _pack(self, tensor: torch.Tensor) -> Any:
        if not isinstance(tensor, Blank) or tensor.numel() * tensor.dtype.itemsize < _LEAST_BYTES:
            return tensor
        storage = storage_of(tensor)._cdata
        if storage in self._weights:
            return tensor
        if any(storage_of(one.tensor)._cdata == storage for one in self._under_way if one.tensor is not None):
            return tensor
        if len(self._under_way) == _UNDER_WAY:
            self._under_way[0].tensor = None
        moved = _Moved(tensor.detach())
        self._under_way.append(moved)
        return moved

    def _unpack(self, held: Any) -> torch.Tensor:
        if not isinstance(held, _Moved):
            return held
        tensor, held.tensor = held.tensor, None
        return held.like.new_empty_strided(held.size, held.stride) if tensor is None else tensor


class _Moved:
    """``tensor`` is None once it is on the host alone; ``like``: a tiny one of its kind."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor: torch.Tensor | None = tensor
        self.size, self.stride = tensor.size(), tensor.stride()
        self.like = tensor.new_empty(0)


def keep_the_heads(head: nn.Module | None) -> None:
    """Let a module's saved tensors stay on the device, as TRL leaves the head's."""
    if head is not None:
        kept = saved_tensors_hooks(lambda one: one, lambda one: one)
        head.register_forward_pre_hook(lambda *_: kept.__enter__())
        head.register_forward_hook(lambda *_: kept.__exit__(), always_call=True)
