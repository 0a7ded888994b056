"""Shapes of an operator's results, remembered by those of its arguments.

A model repeats its layers, so almost every call is like one before. torch works many results out in Python, a hundred
microseconds each; to remember them takes five.
"""

from __future__ import annotations

from typing import Any

import torch

_META = torch.device("meta")
_ALIASES_UNSAID = frozenset({torch.ops.aten._unsafe_view.default, torch.ops.aten._reshape_alias.default})
"""Operators whose schema does not say that their result shares the storage of an argument."""


class ResultShapes:
    """Runs operators on tensors of the meta device; those that only make new tensors run once per shape."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}
        self._makes_new: dict[Any, bool] = {}

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The operator's result."""
        makes_new = self._makes_new.get(func)
        if makes_new is None:
            makes_new = self._makes_new[func] = _makes_new(func)
        if not makes_new:
            return func(*args, **kwargs)
        key: tuple[Any, ...] = (func, tuple([_described(one) for one in args]))
        if kwargs:
            key = (*key, tuple([(name, _described(value)) for name, value in kwargs.items()]))
        try:
            found = self._known.get(key)
        except TypeError:  # an argument that has no hash
            return func(*args, **kwargs)
        if found is not None:
            return _made(found)
        result = func(*args, **kwargs)
        shapes = _shapes(result)
        if shapes is not None:
            self._known[key] = shapes
        return result


def _makes_new(func: Any) -> bool:
    """Whether its results are new tensors, whatever the arguments."""
    schema = func._schema
    return not (
        schema.is_mutable
        or func in _ALIASES_UNSAID
        or any(one.alias_info is not None for one in (*schema.returns, *schema.arguments))
    )


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.size(), value.stride(), value.dtype)
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return tuple([_described(one) for one in value])
    return (type(value), value)


def _shapes(result: Any) -> Any:
    """Size, strides and dtype of a tensor, or of each in a tuple; None for a result of another kind."""
    if isinstance(result, torch.Tensor):
        return (result.size(), result.stride(), result.dtype)
    if isinstance(result, tuple) and all(isinstance(one, torch.Tensor) for one in result):
        return [_shapes(one) for one in result]
    return None


def _made(shapes: Any) -> Any:
    if isinstance(shapes, list):
        return tuple([_made(one) for one in shapes])
    size, stride, dtype = shapes
    return torch.empty_strided(size, stride, dtype=dtype, device=_META)
