"""Tensors in a word: equal words tell, in two processes, that every bit is the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

__all__ = ["digest", "full_elements", "local_part", "optimizer_digests", "weight_digests"]

_CHUNK = 1 << 20
"""Words at a time: eight times as many bytes are taken for a moment."""
_BITS = (1 << 64) - 1
_ODD, _OTHER = 0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9


def digest(tensor: torch.Tensor) -> str:
    """A tensor's type and shape, and a 64-bit sum over its words, each mixed with its place; computed where it lies.

    A sum of integers does not depend on the order in which it is taken. The mixing follows SplitMix64.

    Args:
        tensor: any; its bits are read, not its values.
    """
    flat = tensor.detach().contiguous().reshape(-1)
    whole = flat.numel() * flat.element_size()
    words = flat.view(torch.int32 if whole % 4 == 0 else torch.uint8) if whole else flat.view(torch.uint8)
    total = 0
    for start in range(0, words.numel(), _CHUNK):
        chunk = words[start : start + _CHUNK].to(torch.int64)
        chunk += torch.arange(start, start + chunk.numel(), device=chunk.device) * _ODD
        chunk ^= chunk >> 29
        chunk *= _OTHER
        chunk ^= chunk >> 32
        total += int(chunk.sum())
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)} {total & _BITS:016x}"


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this process holds of it: all, its share of a DTensor (FSDP2), or its partition of a parameter (ZeRO-3)."""
    partition = getattr(tensor, "ds_tensor", None)
    if partition is not None:
        return partition
    local = getattr(tensor, "to_local", None)
    return local() if callable(local) else tensor


def full_elements(tensor: torch.Tensor) -> int:
    """How many numbers all processes together hold of it."""
    return int(getattr(tensor, "ds_numel", tensor.numel()))


def weight_digests(model: nn.Module) -> dict[str, str]:
    """Of what is trained, by its name.

    Args:
        model: of the trainer.
    """
    trained = ((name, held) for name, held in model.named_parameters() if held.requires_grad)
    return {name: digest(local_part(held)) for name, held in trained}


def optimizer_digests(optimizer: Any, model: nn.Module) -> dict[str, str]:
    """Of the state of an optimizer, under whatever accelerate or DeepSpeed have wrapped it in.

    Args:
        optimizer: of the trainer.
        model: of the trainer, for names.
    """
    inner, wrapped = optimizer, set()
    while getattr(inner, "optimizer", None) is not None and id(inner) not in wrapped:
        wrapped.add(id(inner))
        inner = inner.optimizer
    names = {id(held): name for name, held in model.named_parameters()}
    return dict(_state_digests(inner, names))


def _state_digests(optimizer: Any, names: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    state: Mapping[Any, Any] = getattr(optimizer, "state", {})
    grouped = [held for group in optimizer.param_groups for held in group["params"]]
    known = {id(held) for held in grouped}
    apart = [held for held in state if isinstance(held, torch.Tensor) and id(held) not in known]
    for place, held in enumerate([*grouped, *apart]):
        name = names.get(id(held))
        if name is None:  # DeepSpeed's flat copies in float32
            name = f"partition {place}"
            yield name, digest(local_part(held))
        for key, value in sorted(state.get(held, {}).items()):
            if isinstance(value, torch.Tensor):
                yield f"{name} {key}", digest(local_part(value))
            elif isinstance(value, (int, float)):
                yield f"{name} {key}", repr(value)
