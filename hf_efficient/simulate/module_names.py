"""Which module of a model runs, in the forward and in the backward."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import torch
from torch import nn


class ModuleNames:
    """Follows a model by hooks on its modules; ``close`` takes them out.

    In the backward the node of autograd that runs tells by its sequence number when it was made, and so in which
    module's forward. A forward that runs again inside the backward (activation checkpointing) counts as itself.
    """

    def __init__(self, model: nn.Module) -> None:
        self._stack: list[str] = []
        self._numbers: list[int] = []
        self._names: list[str] = []
        self._hooks: list[Callable[[], None]] = []
        for name, module in model.named_modules():
            before = module.register_forward_pre_hook(self._enter(name))
            after = module.register_forward_hook(self._leave, always_call=True)
            self._hooks += [before.remove, after.remove]

    @property
    def in_forward(self) -> bool:
        """Whether a module's forward runs; inside a backward that is a recomputation."""
        return bool(self._stack)

    def current(self) -> str:
        """The innermost module; empty outside the model."""
        node = torch._C._current_autograd_node()
        if self._stack or node is None:
            return self._stack[-1] if self._stack else ""
        place = bisect_right(self._numbers, node._sequence_nr()) - 1
        return self._names[place] if place >= 0 else ""

    def close(self) -> None:
        """No longer follow the model."""
        for remove in self._hooks:
            remove()

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: object) -> None:
            self._stack.append(name)
            self._note(name)

        return enter

    def _leave(self, module: nn.Module, args: object, result: object) -> None:
        self._stack.pop()
        self._note(self._stack[-1] if self._stack else "")

    def _note(self, name: str) -> None:
        number = torch.autograd._get_sequence_nr()
        if self._numbers and number < self._numbers[-1]:  # the thread's counter, read inside a backward
            return
        self._numbers.append(number)
        self._names.append(name)
