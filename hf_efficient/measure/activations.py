"""What a forward keeps for its backward: bytes of activations and logits, counted while the forward runs."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from hf_efficient.measure.storages import Storages, model_tensors, tensors_in

__all__ = ["HOOKS_REFUSED", "ForwardWatch", "Kept", "foreign_hooks"]

HOOKS_REFUSED = "saved tensor hooks"
"""In the message of the RuntimeError that ``torch.func.grad`` raises inside a forward that is watched."""


@dataclass(frozen=True)
class Kept:
    """What a forward keeps until its backward, by device.

    Attributes:
        activations: bytes of what autograd saved, and of the inputs of checkpointed layers, without parameters,
            buffers and logits. The micro-batch is among them as far as an operator saved it, and so are the copies of
            weights that autocast makes.
        logits: bytes of floating tensors whose last dimension is the vocabulary, the model's output included, which
            lives until the loss is computed.
    """

    activations: dict[str, int]
    logits: dict[str, int]


class _Saved:
    """One saved tensor; lives as long as the graph keeps it."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def foreign_hooks() -> bool:
    """Whether somebody's saved-tensor hooks are in force already; False where torch does not tell (before 2.8)."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(True) is not None


class ForwardWatch:
    """Counts what a forward keeps; that computes what it would unwatched, bit for bit.

    Saved tensors pass through hooks that hand back the same memory. A checkpointed layer keeps its inputs alone:
    torch shows those that are positional to the hooks, the others (mask, rotary embeddings) are taken from the call;
    what the layer computes again in the backward is not counted. Nor is what a custom autograd function keeps beside
    ``save_for_backward``.

        watch = ForwardWatch(model, checkpointed, vocabulary)
        watch.start()
        try:
            loss = forward()
        finally:
            watch.stop()
        kept = watch.kept()   # before the backward
    """

    def __init__(self, model: nn.Module, checkpointed: Iterable[nn.Module], vocabulary: int | None) -> None:
        """Nothing is watched yet.

        Args:
            model: the ``logits`` of its output are counted.
            checkpointed: layers under activation checkpointing.
            vocabulary: size of the last dimension of logits; None: nothing is told apart as logits.
        """
        self.checkpointed, self.vocabulary = list(checkpointed), vocabulary
        self._model = model
        self._saved: list[weakref.ref[_Saved]] = []
        self._held: list[torch.Tensor] = []
        self._handles: list[RemovableHandle] = []
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)

    def start(self) -> None:
        """Watch from here on.

        Raises:
            RuntimeError: torch has been told to refuse hooks.
        """
        self._hooks.__enter__()
        for layer in self.checkpointed:
            self._handles.append(layer.register_forward_pre_hook(self._keep_inputs, with_kwargs=True))
        if self.vocabulary is not None:
            self._handles.append(self._model.register_forward_hook(self._keep_logits))

    def stop(self) -> None:
        """Watch no more; also after an exception."""
        self._hooks.__exit__(None, None, None)
        for handle in self._handles:
            handle.remove()

    def kept(self) -> Kept:
        """What is kept now; afterwards the watch holds nothing any more."""
        alive = [saved for saved in (reference() for reference in self._saved) if saved is not None]
        tensors = [*self._held, *(saved.tensor for saved in alive)]
        self._held, self._saved = [], []
        known, logits, activations = Storages(), Storages(), Storages()
        known.add(tensor for tensor, _ in model_tensors(self._model))
        logits.add((tensor for tensor in tensors if self._is_logits(tensor)), apart=known)
        known.add(tensor for tensor in tensors if self._is_logits(tensor))
        activations.add(tensors, apart=known)
        return Kept(activations.bytes_by_device(), logits.bytes_by_device())

    def _pack(self, tensor: torch.Tensor) -> _Saved:
        # An output that an operator saves leads back to the operator: kept as it is, no graph would ever be freed.
        saved = _Saved(tensor.detach() if tensor.requires_grad else tensor)
        self._saved.append(weakref.ref(saved))
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


def _unpack(saved: _Saved) -> torch.Tensor:
    return saved.tensor
