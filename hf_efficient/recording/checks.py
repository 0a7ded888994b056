"""Questions to the autograd graph that was just built; reads no values.

How many losses were no finite number, without waiting for a device before somebody does anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

_LARGEST_GRAPH = 1000  # nodes looked at; a larger graph is given the benefit of the doubt


def passes_gradient(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
    """Whether the graph leads from an output back to an input through differentiable operators.

    ``requires_grad`` does not tell: the output of an operator without a derivative has it too, and its
    backward only warns.
    """
    nodes = {tensor.grad_fn for tensor in inputs if tensor.grad_fn is not None}
    leaves = [tensor for tensor in inputs if tensor.grad_fn is None]
    if any(tensor is known for tensor in outputs for known in leaves):
        return True
    waiting = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    seen = set(waiting)
    while waiting and len(seen) < _LARGEST_GRAPH:
        node = waiting.pop()
        if node in nodes or any(_same_leaf(getattr(node, "variable", None), leaf) for leaf in leaves):
            return True
        if "NotImplemented" in node.name():
            continue
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return len(seen) >= _LARGEST_GRAPH


def _same_leaf(variable: torch.Tensor | None, leaf: torch.Tensor) -> bool:
    """Whether this is the leaf, or what saved-tensor hooks made of it: another tensor on the same memory."""
    if variable is None or variable is leaf:
        return variable is not None
    return variable.shape == leaf.shape and variable.untyped_storage()._cdata == leaf.untyped_storage()._cdata


def floating_tensors(values: Any) -> Iterator[torch.Tensor]:
    """Floating tensors of a tensor, or of a tuple, list or mapping of tensors."""
    if isinstance(values, torch.Tensor):
        if values.is_floating_point():
            yield values
    elif isinstance(values, Mapping):
        yield from floating_tensors(list(values.values()))
    elif isinstance(values, (tuple, list)):
        for value in values:
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                yield value


_MOST_KEPT = 64
"""Scalars that are held before they are counted on their device."""


class LossCheck:
    """Of the micro-batches of a training. ``add`` raises nothing; ``counts`` raises what torch does."""

    def __init__(self, fault: Callable[[], None]) -> None:
        """Nothing is counted yet.

        Args:
            fault: called where one could not be added, while the exception is handled.
        """
        self._fault = fault
        self._kept: list[torch.Tensor] = []
        self._not_finite: torch.Tensor | None = None
        self._seen = 0

    def add(self, loss: torch.Tensor) -> None:
        """One micro-batch's; nothing waits."""
        try:
            kept = self._kept
            kept.append(loss.detach() if loss.requires_grad else loss)
            if len(kept) >= _MOST_KEPT:
                self._fold()
        except Exception:  # noqa: BLE001  it is told of there
            self._fault()

    def counts(self) -> tuple[int, int]:
        """Losses seen, and those that were not finite; waits for the device."""
        self._fold()
        return self._seen, 0 if self._not_finite is None else int(self._not_finite)

    def _fold(self) -> None:
        if not self._kept:
            return
        self._seen += len(self._kept)
        found = torch.stack(self._kept).isfinite().logical_not().sum()
        self._kept.clear()
        self._not_finite = found if self._not_finite is None else self._not_finite + found
