"""Tells an allocator which module of a model runs, in the forward and in the backward."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

__all__ = ["ModuleLabels", "is_compiled"]

BACKWARD = " (backward)"
OPTIMIZER = "optimizer step"

_PEFT = "base_model.model."
_MARK = "hf_efficient.labelled"


class _OfThread(threading.local):
    """A backward on a GPU has a thread of its own, and so has what torch's allocator is told."""

    def __init__(self) -> None:
        self.stack: list[str] = []
        self.below = ""


def is_compiled(model: nn.Module) -> bool:
    """Whether a part of it is: a hook would break the compiled graph apart."""
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


class ModuleLabels:
    """Follows a model by hooks on its modules, and an optimizer by hooks on its step; ``close`` takes them out.

    Forward: the innermost module whose forward runs. Backward: a node of autograd that made a module's result sets the
    name of that module, one that made a module's input that of the module around it, with `` (backward)``; it stands
    until the next of them. No result is wrapped, no tensor changed. A forward that runs again inside the backward
    (activation checkpointing) counts as itself.

    Attributes:
        calls: of the hooks, all threads together.
        seconds: in them.
    """

    def __init__(self, model: nn.Module, label: Callable[[str], None]) -> None:
        """Follow from here on.

        Args:
            model: is not compiled.
            label: is told the name, in the thread that runs; empty outside the model.
        """
        self.calls, self.seconds = 0, 0.0
        self._label = label
        self._of_thread = _OfThread()
        self._hooks: list[Any] = [
            register_optimizer_step_pre_hook(lambda *_: self._outside(OPTIMIZER)),
            register_optimizer_step_post_hook(lambda *_: self._outside("")),
        ]
        for path, module in model.named_modules():
            name = path.removeprefix(_PEFT) or type(model).__name__
            self._hooks.append(module.register_forward_pre_hook(self._enter(name), with_kwargs=True))
            self._hooks.append(module.register_forward_hook(self._leave(name), always_call=True))

    def close(self) -> None:
        """No longer follow, and name nothing."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._outside("")

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            began = time.perf_counter()
            stack = self._of_thread.stack
            if stack:
                self._mark((args, kwargs), stack[-1])
            stack.append(name)
            self._label(name)
            self._count(began)

        return enter

    def _leave(self, name: str) -> Callable[..., None]:
        def leave(module: nn.Module, args: Any, result: Any) -> None:
            began = time.perf_counter()
            stack = self._of_thread.stack
            if stack and stack[-1] == name:  # not where another's hook before ours has failed
                stack.pop()
                self._mark(result, name)
                self._label(stack[-1] if stack else self._of_thread.below)
            self._count(began)

        return leave

    def _mark(self, held: Any, name: str) -> None:
        """Let the nodes that made these tensors set a name; the innermost module is the first to do so."""
        for tensor in _tensors(held):
            node: Any = tensor.grad_fn
            if node is not None and _MARK not in node.metadata:
                node.metadata[_MARK] = name
                node.register_prehook(self._backward(name + BACKWARD))

    def _backward(self, name: str) -> Callable[..., None]:
        def backward(gradients: Any) -> None:
            began = time.perf_counter()
            self._of_thread.below = name
            if not self._of_thread.stack:
                self._label(name)
            self._count(began)

        return backward

    def _outside(self, name: str) -> None:
        """In this thread no module runs."""
        self._of_thread.below = ""
        self._label(name)

    def _count(self, began: float) -> None:
        self.calls += 1
        self.seconds += time.perf_counter() - began


def _tensors(held: Any) -> Iterator[torch.Tensor]:
    """Of the arguments or the result of a forward, as deep as these go."""
    if isinstance(held, torch.Tensor):
        yield held
    elif isinstance(held, dict):
        for value in held.values():
            yield from _tensors(value)
    elif isinstance(held, (tuple, list)):
        for value in held:
            yield from _tensors(value)
