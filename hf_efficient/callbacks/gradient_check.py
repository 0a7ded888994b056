"""In the first step: does every trainable parameter get a gradient, and every frozen layer pass one on?"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_efficient.errors import TrainingCheckError
from hf_efficient.measure.autograd import floating_tensors, passes_gradient

__all__ = ["GradientCheck", "distributed_type", "gradients_elsewhere", "parameters_without_gradient"]

logger = logging.getLogger(__name__)

_NAMED = 5
_OPT_OUT = (
    "If this is intended, switch the check off: check_gradients=False, in a recipe efficiency.check_gradients: false."
)


def parameters_without_gradient(model: nn.Module) -> list[str]:
    """Names of the parameters that require a gradient and have none."""
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None]


class GradientCheck(TrainerCallback):
    """Checks the first optimizer step of every ``train()``; reads no values, synchronises nothing.

    - Every parameter with ``requires_grad`` has a gradient when the optimizer first steps.
    - During that step, a gradient can pass every frozen layer, from its output to an input that requires one.
      A layer that breaks the chain (4-bit weights repacked for inference, a forward that detaches) starves
      all layers below it.

    Raises TrainingCheckError out of the training. Where gradients are not on the parameters (DeepSpeed, FSDP,
    optimizers that step inside the backward) the first check is left out; under ``torch_compile`` the second.
    """

    def __init__(self, done: Callable[[], None] = lambda: None) -> None:
        """Nothing is checked before training begins; ``done`` is called once the first step was found good."""
        self._done = done
        self._pending = False
        self._handles: list[RemovableHandle] = []
        self._broken: list[str] = []

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The next optimizer step is the first of this call of ``train()``."""
        self.remove_hooks()
        self._pending = True

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Watch the frozen layers during the first step."""
        if not self._pending or self._handles or model is None or args.torch_compile:
            return
        for name, module in _frozen_leaves(model):
            self._handles.append(module.register_forward_hook(self._watch(name), with_kwargs=True))
        self._handles.append(model.register_forward_hook(lambda *_: self._raise_if_broken()))

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Report a layer whose chain broke in a recomputed forward, after the model's own had ended."""
        self._raise_if_broken()

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Check the gradients of the first step, and stop watching."""
        if not self._pending:
            return
        self._pending = False
        try:
            self._raise_if_broken()
        finally:
            self.remove_hooks()
        elsewhere = gradients_elsewhere(args)
        if elsewhere:
            logger.debug("Gradients are not checked: with %s they are not on the parameters.", elsewhere)
        elif model is not None:
            _require_gradients(model)
        self._done()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop watching, if no step was made."""
        self.remove_hooks()

    def remove_hooks(self) -> None:
        """Take all hooks off the model."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._broken.clear()
        self._pending = False

    def _watch(self, name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            # Without grad mode nothing requires a gradient: the first pass of reentrant checkpointing,
            # no_grad blocks.
            inputs = [tensor for tensor in (*floating_tensors(args), *floating_tensors(kwargs)) if tensor.requires_grad]
            outputs = list(floating_tensors(output))
            if not torch.is_grad_enabled() or not inputs or not outputs:
                return
            if name not in self._broken and not passes_gradient(inputs, outputs):
                self._broken.append(name)

        return hook

    def _raise_if_broken(self) -> None:
        if not self._broken:
            return
        broken = list(self._broken)
        self.remove_hooks()
        raise TrainingCheckError(
            f"{len(broken)} frozen layers pass no gradient on to the layers below: {_listed(broken)}. Their "
            "weights were repacked for inference (4-bit on a CPU: call "
            "hf_efficient.callbacks.keep_four_bit_trainable(model) before the first evaluation or "
            f"generation), or their forward detaches its input. {_OPT_OUT}"
        )


def _require_gradients(model: nn.Module) -> None:
    missing = parameters_without_gradient(model)
    if missing:
        raise TrainingCheckError(
            f"{len(missing)} trainable parameters got no gradient in the first step: {_listed(missing)}. "
            "The loss does not depend on them: freeze them (requires_grad_(False)), or mend the forward "
            f"that leaves them out. {_OPT_OUT}"
        )


def _frozen_leaves(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        parameters = list(module.parameters(recurse=False))
        is_leaf = next(module.children(), None) is None
        if is_leaf and parameters and not any(parameter.requires_grad for parameter in parameters):
            yield name, module


def distributed_type() -> str:
    """How accelerate spreads the training over processes: ``MULTI_GPU``, ``FSDP``, ``DEEPSPEED``, ...; ``NO``."""
    from accelerate.state import AcceleratorState, is_initialized

    return str(AcceleratorState().distributed_type.value) if is_initialized() else "NO"


def gradients_elsewhere(args: TrainingArguments) -> str:
    """What keeps gradients away from the parameters; empty where nothing does."""
    distributed = distributed_type()
    if distributed in ("DEEPSPEED", "FSDP", "MEGATRON_LM"):
        return distributed
    optimizer = str(getattr(args.optim, "value", args.optim))
    return optimizer if "lomo" in optimizer or "layerwise" in optimizer else ""


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
