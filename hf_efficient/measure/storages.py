"""Bytes of live tensors, by the storages behind them: what is shared is counted once; reads no values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

__all__ = ["Storages", "model_tensors", "tensors_in"]


class Storages:
    """A set of storages. Keep the tensors alive for as long as more are added: a storage is known by its address."""

    def __init__(self) -> None:
        self._bytes: dict[int, tuple[str, int]] = {}

    def add(self, tensors: Iterable[torch.Tensor], apart: Storages | None = None) -> None:
        """Take in the storages of these tensors, except those that are in ``apart``."""
        known = {} if apart is None else apart._bytes
        for tensor in tensors:
            for part in _plain(tensor):
                storage = part.untyped_storage()
                if storage._cdata not in known and part.device.type != "meta":
                    self._bytes[storage._cdata] = (str(part.device), storage.nbytes())

    def bytes_by_device(self) -> dict[str, int]:
        """Bytes on each device (``cpu``, ``cuda:0``) that has any."""
        found: dict[str, int] = {}
        for device, size in self._bytes.values():
            if size:
                found[device] = found.get(device, 0) + size
        return found


def model_tensors(model: nn.Module) -> Iterator[tuple[torch.Tensor, bool]]:
    """Parameters and buffers of a model, with what quantized ones keep beside them, and whether they are trained.

    What bitsandbytes keeps: scales, their own scales and offset, code books, for 4-bit (``quant_state``; of a weight
    that FSDP2 has shared out only its module keeps it) and for 8-bit (``SCB`` on the weight, or on its module once it
    ran). Under DeepSpeed's ZeRO-3 a parameter is empty, and its ``ds_tensor`` is this rank's part of it.
    """
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            yield parameter, parameter.requires_grad
            if isinstance(part := getattr(parameter, "ds_tensor", None), torch.Tensor):
                yield part, parameter.requires_grad
            if _of_bitsandbytes(parameter):
                yield from ((tensor, False) for tensor in _kept_by(parameter))
        for state in (vars(module).get("state"), vars(module).get("quant_state")):
            if _of_bitsandbytes(state):
                yield from ((tensor, False) for tensor in _kept_by(state))
        for buffer in module.buffers(recurse=False):
            yield buffer, False


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """The tensors of nested mappings, lists and tuples."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from tensors_in(value)
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from tensors_in(value)


def _of_bitsandbytes(value: Any) -> bool:
    return type(value).__module__.startswith("bitsandbytes.")


def _kept_by(value: Any) -> Iterator[torch.Tensor]:
    """Tensors among the attributes of an object of bitsandbytes, and among those of such objects that it keeps."""
    for kept in vars(value).values():
        if isinstance(kept, torch.Tensor):
            yield kept
        elif _of_bitsandbytes(kept) and hasattr(kept, "__dict__") and not isinstance(kept, nn.Module):
            yield from _kept_by(kept)


def _plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with storages of their own that a tensor is made of: the shard of a DTensor, the parts of a sparse
    or quantized one."""
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            part = getattr(tensor, name)
            if isinstance(part, torch.Tensor):  # a DTensor tells its mesh as well
                yield from _plain(part)
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    else:
        yield tensor
