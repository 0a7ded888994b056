"""Activation offloading on tensors without values, as TRL's ``OffloadActivations`` (1.16) does it with streams.

A saved tensor of a kilobyte or more goes to the host. The last few stay on the device while their copies are under way.
In the backward each comes back where it is used. Weights stay, and so does what the head saves.
"""

from collections import deque
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from hf_efficient.simulate.blank import Blank

_LEAST_BYTES = 1024
_UNDER_WAY = 5
"""Saved tensors whose copies may be under way: ``max_fwd_stash_size``."""


class OffloadedActivations(saved_tensors_hooks):
    def __init__(self, model: nn.Module) -> None:
        self._weights = {_storage(one) for one in (*model.parameters(), *model.buffers())}
        self._under_way: deque[_Moved] = deque(maxlen=_UNDER_WAY)
        super().__init__(self._pack, self._unpack)

    def _pack(self, tensor: torch.Tensor) -> Any:
        size = tensor.numel() * tensor.dtype.itemsize
        if not isinstance(tensor, Blank) or size < _LEAST_BYTES or _storage(tensor) in self._weights:
            return tensor
        if any(_storage(one.tensor) == _storage(tensor) for one in self._under_way if one.tensor is not None):
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


def _storage(tensor: torch.Tensor) -> int:
    held = tensor.shell if isinstance(tensor, Blank) else tensor
    return int(held.untyped_storage()._cdata)
