"""Every time that the host reads a tensor's values, as torch's own dispatch tells it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["OperatorReads", "PythonReads"]

Told = Callable[[str, bool, float], None]
"""Called with the name of what read, whether the tensor lay on a device, and how many seconds it took."""

_READS = frozenset(
    {
        "_local_scalar_dense",  # item, float(), int(), bool(), a condition, in Python and in C++
        "nonzero",
        "masked_select",
        "unique_consecutive",
        "_unique2",
        "equal",
        "allclose",
        "is_nonzero",
        "bincount",
    }
)
_INDEXED = frozenset({"index", "index_put", "index_put_"})
_COPIES = frozenset({"_to_copy", "copy_"})
_PYTHON = frozenset({torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu, torch.Tensor.__array__})


class OperatorReads(TorchDispatchMode):
    """Sees the operators, whoever calls them, also in the backward, whose threads take the mode over."""

    def __init__(self, told: Told) -> None:
        """``told``: of every read."""
        super().__init__()
        self._told = told

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operator; tell of it if it read."""
        name = func.overloadpacket.__name__
        began = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        if name in _READS or (name in _INDEXED and _by_mask(args)) or (name in _COPIES and _to_host(args, result)):
            shown = "item" if name == "_local_scalar_dense" else name
            self._told(shown, _on_device(args), time.perf_counter() - began)
        return result


class PythonReads(TorchFunctionMode):
    """Sees the calls that reach no operator where the tensor lies on the host, except within the backward."""

    def __init__(self, told: Told) -> None:
        """``told``: of every read of a tensor on the host."""
        super().__init__()
        self._told = told

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the function; tell of it if it read."""
        if func not in _PYTHON or _on_device(args):  # of a device the copy is seen
            return func(*args, **(kwargs or {}))
        began = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        self._told(func.__name__, False, time.perf_counter() - began)
        return result


def _on_device(args: tuple[Any, ...]) -> bool:
    return any(isinstance(one, torch.Tensor) and one.device.type not in ("cpu", "meta") for one in args)


def _by_mask(args: tuple[Any, ...]) -> bool:
    """Whether some index is a mask, whose true values must be counted before there is a shape."""
    indices = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ()
    return any(isinstance(one, torch.Tensor) and one.dtype in (torch.bool, torch.uint8) for one in indices)


def _to_host(args: tuple[Any, ...], result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.device.type == "cpu" and _on_device(args)
