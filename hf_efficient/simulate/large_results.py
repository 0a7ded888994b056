"""What becomes a large real tensor, told before it is computed: a simulation has neither its memory nor its time.

Real tensors (token ids, positions) become masks of rows and columns, and code makes whole matrices of ones or zeros;
PEFT's DoRA makes a unit matrix as wide as each layer.
"""

from __future__ import annotations

import math
from typing import Any

import torch

MOST_REAL = 2**20
"""Values of a real tensor; a larger one becomes blank."""
_META = torch.device("meta")


def grows_large(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operator on real tensors, or on none, would make a tensor of more than ``MOST_REAL`` values.

    Asked of operators that go value by value, and of those that make a tensor from numbers; False for others.

    Args:
        func: of ``torch.ops.aten``.
        args, kwargs: its arguments.
    """
    shapes = [one.shape for one in args if isinstance(one, torch.Tensor)]
    if not shapes:
        return _makes_large(func, args, kwargs)
    if len(shapes) == 1 or torch.Tag.pointwise not in func.tags:
        return False
    return math.prod(torch.broadcast_shapes(*shapes)) > MOST_REAL


def _makes_large(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if "device" not in kwargs:
        return False
    made = func(*args, **{**kwargs, "device": _META})
    return isinstance(made, torch.Tensor) and made.numel() > MOST_REAL
