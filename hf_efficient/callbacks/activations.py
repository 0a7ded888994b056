"""Memory of activations and logits, measured in the forward of one micro-batch, the largest so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import TrainingArguments
from transformers.modeling_layers import GradientCheckpointingLayer

from hf_efficient.callbacks.gradient_check import distributed_type
from hf_efficient.callbacks.memory import MemoryCount
from hf_efficient.measure.activations import HOOKS_REFUSED, ForwardWatch, foreign_hooks
from hf_efficient.measure.isolation import random_state

__all__ = ["ActivationProbe"]

_Loss = TypeVar("_Loss")

_LARGER = 1.25
_WHAT = "memory of activations and logits"


class ActivationProbe:
    """Watches the first forward of a ``train()``, and a later one where it has 1.25 times as many positions.

    On every process, though rank 0 alone is told of: should a forward have to be run again, then all do so.
    """

    def __init__(self, memory: MemoryCount) -> None:
        """Nothing is watched before training begins.

        Args:
            memory: is told; while it is not active nothing is watched.
        """
        self._memory = memory
        self._begun = 0
        self._off = False
        self._measured = 0.0

    def wants(self, model: nn.Module, inputs: Any) -> bool:
        """Whether the forward of this micro-batch is to be watched."""
        memory = self._memory
        if self._begun != memory.begun:
            self._begun, self._off, self._measured = memory.begun, False, 0.0
        if self._off or not memory.active or not model.training:
            return False
        return not self._measured or (_positions(inputs) or 0) > _LARGER * self._measured

    def run(
        self,
        forward: Callable[[], _Loss],
        args: TrainingArguments,
        wrapped: nn.Module,
        model: nn.Module,
        inputs: Any,
    ) -> _Loss:
        """Run a forward and count what it keeps.

        ``torch.func.grad`` inside a forward refuses to work while saved tensors are watched: then the micro-batch and
        the random generators are put back, the forward runs again without, and none is watched any more.

        Args:
            forward: computes the loss of the micro-batch.
            args: of the training.
            wrapped: the model that runs, as accelerate wraps it.
            model: the same, unwrapped.
            inputs: the micro-batch.
        """
        batch = dict(inputs) if isinstance(inputs, MutableMapping) else None
        started = self._start(args, wrapped, model)
        if started is None:
            return forward()
        watch, restore = started
        refused = False
        try:
            loss = forward()
        except RuntimeError as error:
            refused = HOOKS_REFUSED in str(error)
            if not refused:
                raise
        finally:
            watch.stop()
        if not refused:
            self._memory.guarded(lambda: self._tell(watch, _positions(batch)))
            return loss
        self._stop("the forward does not bear that its saved tensors are watched (it uses torch.func)")
        restore()
        if batch is not None:
            inputs.clear()
            inputs.update(batch)
        return forward()

    def _start(
        self, args: TrainingArguments, wrapped: nn.Module, model: nn.Module
    ) -> tuple[ForwardWatch, Callable[[], None]] | None:
        found: list[tuple[ForwardWatch, Callable[[], None]]] = []

        def start() -> None:
            why = _why_not(args, wrapped, model)
            if why is not None:
                self._stop(why)
                return
            watch, restore = ForwardWatch(model, _checkpointed(model), _vocabulary(model)), random_state(args.device)
            watch.start()
            found.append((watch, restore))

        self._memory.guarded(start)
        return found[0] if found else None

    def _stop(self, why: str) -> None:
        self._off = True
        self._memory.leave_out(_WHAT, why)

    def _tell(self, watch: ForwardWatch, positions: int | None) -> None:
        self._measured = positions or math.inf
        kept = watch.kept()
        on = "one micro-batch" if positions is None else f"a micro-batch of {positions:,} positions"
        checkpointed = ", without what checkpointed layers compute again" if watch.checkpointed else ""
        self._memory.tell_positions(positions)
        self._memory.tell("activations", kept.activations, "measured", f"kept for the backward of {on}{checkpointed}")
        if watch.vocabulary is not None:
            self._memory.tell("logits", kept.logits, "measured", f"of {on}")


def _positions(inputs: Any) -> int | None:
    ids = inputs.get("input_ids") if isinstance(inputs, (dict, Mapping)) else None  # a dict's check is the cheap one
    return ids.numel() if isinstance(ids, torch.Tensor) else None


def _checkpointed(model: nn.Module) -> list[nn.Module]:
    return [
        module
        for module in model.modules()
        if isinstance(module, GradientCheckpointingLayer) and module.gradient_checkpointing and module.training
    ]


def _vocabulary(model: nn.Module) -> int | None:
    """Entries of the vocabulary of a language model; None of any other."""
    config = getattr(model, "config", None)
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if config is None or head is None or not hasattr(config, "get_text_config"):
        return None
    return getattr(config.get_text_config(), "vocab_size", None)


def _why_not(args: TrainingArguments, wrapped: nn.Module, model: nn.Module) -> str | None:
    """Why saved tensors cannot be watched; None where they can."""
    if args.torch_compile or any(_is_compiled(module) for module in wrapped.modules()):
        return "the model is compiled, and its graphs would be compiled anew for the watching"
    if getattr(getattr(model, "config", None), "_attn_implementation", None) == "flex_attention":
        return "flex attention is compiled, and would be compiled anew for the watching"
    if isinstance(wrapped, nn.DataParallel):
        return "DataParallel runs the forward in threads of its own"
    if distributed_type() in ("DEEPSPEED", "MEGATRON_LM"):
        return "DeepSpeed and Megatron-LM swap the weights under the tensors that a forward saves"
    if foreign_hooks() or getattr(args, "activation_offloading", False):
        return "activations go elsewhere until the backward (activation offloading)"
    return None


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
