"""Bytes of live tensors by their storages, and what a forward keeps for its backward, counted while it runs.

Nothing here reads a value, and what runs in the middle of a training leaves it as it was.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.hooks import RemovableHandle

HOOKS_REFUSED = "saved tensor hooks"
"""In the message of the RuntimeError that ``torch.func.grad`` raises inside a forward that is watched."""


def random_state(device: torch.device | str = "cpu") -> Callable[[], None]:
    """Remember the generators of python, numpy, torch and its current device of this type; the result restores them."""
    device_type = torch.device(device).type
    accelerator = None if device_type in ("cpu", "meta") else torch.get_device_module(device_type)
    python_state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    device_state = None if accelerator is None else accelerator.get_rng_state()

    def restore() -> None:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        if accelerator is not None:
            accelerator.set_rng_state(device_state)

    return restore


@contextmanager
def kept_random_state(device: torch.device | str = "cpu") -> Iterator[None]:
    """Afterwards the generators of ``random_state`` are as before: a data loader alone draws from torch's."""
    restore = random_state(device)
    try:
        yield
    finally:
        restore()


@contextmanager
def kept_modes(model: nn.Module) -> Iterator[None]:
    """Afterwards every module that the model had before is in training or eval mode as before."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


class Storages:
    """Storages counted once; keep the tensors alive meanwhile, since a storage is known by its address."""

    def __init__(self) -> None:
        self._bytes: dict[int, tuple[str, int]] = {}

    def add(self, tensors: Iterable[torch.Tensor], apart: Storages | None = None) -> None:
        """Take in the storages of these tensors, except those that are in ``apart``."""
        known = {} if apart is None else apart._bytes
        for tensor in tensors:
            for part in _parts(tensor):
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


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with storages of their own: the shard of a DTensor, the parts of a sparse or quantized one."""
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            part = getattr(tensor, name)
            if isinstance(part, torch.Tensor):  # a DTensor names its mesh as well
                yield from _parts(part)
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    else:
        yield tensor


def model_tensors(model: nn.Module) -> Iterator[tuple[torch.Tensor, bool]]:
    """Parameters and buffers, with what quantized ones keep beside them, and whether they are trained. bitsandbytes
    keeps scales and code books: 4-bit in ``quant_state`` (of the module alone once FSDP2 has sharded the weight), 8-bit
    in ``SCB``. Under ZeRO-3 a parameter is empty, and its ``ds_tensor`` is this rank's part."""
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


def _of_bitsandbytes(value: Any) -> bool:
    return type(value).__module__.startswith("bitsandbytes.")


def _kept_by(value: Any) -> Iterator[torch.Tensor]:
    for kept in vars(value).values():
        if isinstance(kept, torch.Tensor):
            yield kept
        elif _of_bitsandbytes(kept) and hasattr(kept, "__dict__") and not isinstance(kept, nn.Module):
            yield from _kept_by(kept)


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (Mapping, list, tuple)):
        for value in values.values() if isinstance(values, Mapping) else values:
            yield from tensors_in(value)


def is_compiled(model: nn.Module) -> bool:
    """Whether a part of it is: a hook would break the compiled graph apart."""
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


@dataclass(frozen=True)
class Kept:
    """Bytes by device that a forward keeps for its backward, beside parameters and buffers. ``logits``: floating
    tensors whose last dimension is the vocabulary; ``activations``: the rest, with inputs of checkpointed layers."""

    activations: dict[str, int]
    logits: dict[str, int]


class _Saved:
    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def foreign_hooks() -> bool:
    """Whether somebody's saved-tensor hooks are in force already; False where torch does not say (before 2.8)."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(True) is not None


class ForwardWatch:
    """Counts what a forward keeps, which computes what it would unwatched, bit for bit. Call ``start``, the forward,
    ``close``, and ``kept`` before the backward. Of a checkpointed layer the inputs count. Recomputed tensors and what a
    custom autograd function keeps beside ``save_for_backward`` are not counted. ``vocabulary``: of logits, if any."""

    def __init__(self, model: nn.Module, checkpointed: Iterable[nn.Module], vocabulary: int | None) -> None:
        self.checkpointed, self.vocabulary = list(checkpointed), vocabulary
        self._model = model
        self._saved = weakref.WeakSet[_Saved]()
        self._held: list[torch.Tensor] = []
        self._handles: list[RemovableHandle] = []
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda saved: saved.tensor)

    def start(self) -> None:
        """Watch from here on; raises RuntimeError where torch refuses hooks."""
        self._hooks.__enter__()
        for layer in self.checkpointed:
            self._handles.append(layer.register_forward_pre_hook(self._keep_inputs, with_kwargs=True))
        if self.vocabulary is not None:
            self._handles.append(self._model.register_forward_hook(self._keep_logits))

    def close(self) -> None:
        self._hooks.__exit__(None, None, None)
        for handle in self._handles:
            handle.remove()

    def kept(self) -> Kept:
        """What is kept now; afterwards the watch holds nothing any more."""
        tensors = [*self._held, *(saved.tensor for saved in self._saved)]
        self._held, self._saved = [], weakref.WeakSet()
        known, logits, activations = Storages(), Storages(), Storages()
        known.add(tensor for tensor, _ in model_tensors(self._model))
        logits.add((tensor for tensor in tensors if self._is_logits(tensor)), apart=known)
        known.add(tensor for tensor in tensors if self._is_logits(tensor))
        activations.add(tensors, apart=known)
        return Kept(activations.bytes_by_device(), logits.bytes_by_device())

    def _pack(self, tensor: torch.Tensor) -> _Saved:
        # An output that an operator saves leads back to the operator: kept as it is, no graph would ever be freed.
        saved = _Saved(tensor.detach() if tensor.requires_grad else tensor)
        self._saved.add(saved)
        return saved

    def _keep_inputs(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            self._held.extend(tensors_in((args, kwargs)))

    def _keep_logits(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        logits = getattr(output, "logits", None)
        if isinstance(logits, torch.Tensor) and torch.is_grad_enabled():
            self._held.append(logits)

    def _is_logits(self, tensor: torch.Tensor) -> bool:
        """Rows of the vocabulary's length. A transposed copy of the head's weight is none: its rows lie across."""
        return (
            self.vocabulary is not None
            and tensor.layout is torch.strided
            and tensor.is_floating_point()
            and tensor.dim() >= 2
            and tensor.shape[-1] == self.vocabulary
            and tensor.stride(-1) == 1
        )
