"""Questions to the autograd graph that was just built; reads no values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

_LARGEST_GRAPH = 1000  # nodes looked at; a larger graph is given the benefit of the doubt


def passes_gradient(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
    """Whether differentiable operators lead from an output back to an input, unlike ``requires_grad`` alone."""
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
