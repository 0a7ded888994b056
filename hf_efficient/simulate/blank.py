"""Tensors that have shape, strides and dtype, and no values: they say that they lie on a CPU, and hold no memory.

torch's own ``FakeTensor`` does the same for compilers at several times the cost per operator, and a simulated step has
a hundred thousand. A ``Blank`` wraps a tensor on the meta device, and runs every operator there. Since it says ``cpu``,
autocast, kernels and code behave as on a CPU. A real tensor (token ids, masks) and a blank one give a blank.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

_META = torch.device("meta")
_ALIASES_UNSAID = frozenset({torch.ops.aten._unsafe_view.default, torch.ops.aten._reshape_alias.default})
"""Operators whose schema does not say that their result shares the storage of an argument."""


_known_results: dict[Any, Any] = {}


def _run_on_meta(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator on tensors of the meta device; one that only makes new tensors runs once per shape."""
    if not _makes_new(func):
        return func(*args, **kwargs)
    key = (func, _described(args), _described(tuple(kwargs.items())))
    try:
        found = _known_results.get(key)
    except TypeError:  # an argument that has no hash
        return func(*args, **kwargs)
    if found is not None:
        return _made(found)
    result = func(*args, **kwargs)
    several = isinstance(result, tuple) and all(isinstance(one, torch.Tensor) for one in result)
    if several or isinstance(result, torch.Tensor):
        _known_results[key] = _described(result)
    return result


@functools.cache
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
    return tuple([_described(one) for one in value]) if isinstance(value, (list, tuple)) else (type(value), value)


def _made(described: Any) -> Any:
    if not described or not isinstance(described[0], torch.Size):  # several
        return tuple([_made(one) for one in described])
    size, stride, dtype = described
    return torch.empty_strided(size, stride, dtype=dtype, device=_META)


_CPU = torch.device("cpu")
_PLAIN = frozenset({bool, int, float, str, type(None), torch.dtype, torch.layout, torch.memory_format})
"""Types of arguments that are the same on every device."""
_DISPATCH = frozenset({"__torch_dispatch__", "__call__", "_fn", "inner"})
"""Functions of torch between an operator and its caller."""
_USES_BY_BUFFER = 4
"""References to a gradient that only the engine's buffer holds: the buffer's, and those of the call."""
_wrapper = torch.Tensor._make_wrapper_subclass
_ADD = torch.ops.aten.add.Tensor
_READ_SCALAR = torch.ops.aten._local_scalar_dense.default


class Blank(torch.Tensor):
    """One such tensor; a scalar read from it is 1, or False. Storages are those of ``shell``, on the meta device."""

    shell: torch.Tensor

    @staticmethod
    def __new__(cls: type[Blank], shell: torch.Tensor) -> Blank:
        made = _wrapper(
            cls, shell.size(), shell.stride(), shell.storage_offset(), None, shell.dtype, torch.strided, _CPU
        )
        made.shell = shell
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Blank({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return run_blank(func, args, kwargs)


def run_blank(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    if func is _READ_SCALAR:
        dtype = args[0].dtype
        return False if dtype == torch.bool else 1.0 if dtype.is_floating_point else 1
    if func is _ADD and _summed_in_place(args):
        return args[0]
    owners: dict[int, Blank] = {}
    shells = tuple([_inside(arg, owners) for arg in args])
    named = {name: _inside(value, owners) for name, value in kwargs.items()} if kwargs else {}
    return _outside(_run_on_meta(func, shells, named), owners)


def _summed_in_place(args: tuple[Any, ...]) -> bool:
    """Whether autograd adds gradients of a tensor used twice, and may write into the first. It may unless somebody else
    has that, but not for a subclass, as here (``InputBuffer::accumulate``, torch/csrc/autograd/input_buffer.cpp)."""
    if len(args) != 2 or torch._C._current_graph_task_id() == -1 or not _called_by_engine():
        return False
    first, second = args
    if not isinstance(first, Blank) or not isinstance(second, torch.Tensor) or first.shape != second.shape:
        return False
    storage = first.shell.untyped_storage()
    uses: int = first._use_count()  # type: ignore[attr-defined]
    alone = torch._C._storage_Use_Count(storage._cdata) == 2 and uses <= _USES_BY_BUFFER
    return alone and storage.nbytes() == first.numel() * first.dtype.itemsize


def _called_by_engine() -> bool:
    """Whether no code of a model lies between the operator and the engine: that would be a recomputation."""
    frame: Any = sys._getframe(3)
    while frame is not None and frame.f_code.co_name in _DISPATCH:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"


def blank(*shape: int, dtype: torch.dtype) -> Blank:
    return Blank(torch.empty(shape, dtype=dtype, device=_META))


def emptied(tensor: torch.Tensor) -> Blank:
    return Blank(torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=_META))


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    return (tensor.shell if isinstance(tensor, Blank) else tensor).untyped_storage()


def _inside(value: Any, owners: dict[int, Blank]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is Blank or isinstance(value, Blank):
        owners[id(value.shell)] = value
        return value.shell
    if isinstance(value, torch.Tensor):
        return value if value.is_meta else emptied(value).shell
    if kind is list or isinstance(value, (list, tuple)):
        return [_inside(one, owners) for one in value]
    return _META if kind is torch.device else value


def _outside(value: Any, owners: dict[int, Blank]) -> Any:
    if isinstance(value, torch.Tensor):
        owner = owners.get(id(value))
        return Blank(value) if owner is None else owner
    if isinstance(value, (list, tuple)):
        return type(value)([_outside(one, owners) for one in value]) if type(value) in (list, tuple) else value
    return value


def make_blank(module: nn.Module) -> None:
    """Put blank tensors in place of all parameters and buffers on the meta device; tied ones stay tied."""
    _replace_parameters(module, lambda one: emptied(one) if one.is_meta else None)
    for part in module.modules():
        for name, buffer in list(part._buffers.items()):
            if buffer is not None and buffer.is_meta:
                part._buffers[name] = emptied(buffer)


def compute_in(module: nn.Module, dtype: torch.dtype) -> None:
    """Put parameters of another dtype in place of those in float32; tied ones stay tied."""
    _replace_parameters(module, lambda one: blank(*one.shape, dtype=dtype) if one.dtype == torch.float32 else None)


def _replace_parameters(module: nn.Module, make: Callable[[nn.Parameter], Blank | None]) -> None:
    made: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:
                value = make(parameter)
                kept = parameter if value is None else nn.Parameter(value, requires_grad=parameter.requires_grad)
                made[id(parameter)] = kept
            part._parameters[name] = made[id(parameter)]


MOST_REAL = 2**20
"""Values of a real tensor; a larger one becomes blank."""


def grows_large(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a value-by-value or creating operator without blanks would make more than ``MOST_REAL`` values."""
    shapes = [one.shape for one in args if isinstance(one, torch.Tensor)]
    if not shapes and "device" in kwargs:
        made = func(*args, **{**kwargs, "device": _META})
        return isinstance(made, torch.Tensor) and made.numel() > MOST_REAL
    if len(shapes) < 2 or torch.Tag.pointwise not in func.tags:
        return False
    return math.prod(torch.broadcast_shapes(*shapes)) > MOST_REAL
