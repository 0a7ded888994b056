"""Tensors that have shape, strides and dtype, and no values: they say that they lie on a CPU, and hold no memory.

torch's own ``FakeTensor`` does the same for compilers, which must know much more of an operator than its results'
shapes; that costs several times as much per operator, and a simulated step has a hundred thousand of them. A ``Blank``
wraps a tensor on the meta device and runs every operator there. Since it says ``cpu``, autocast, the choice of kernels
and code that asks for a device behave as on a CPU. Where a real tensor (token ids, masks) meets a blank one the result
is blank; among themselves real tensors keep their values.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from hf_efficient.simulate.result_shapes import ResultShapes

_CPU = torch.device("cpu")
_META = torch.device("meta")
_shapes = ResultShapes()
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
    """One such tensor.

    A scalar that code reads from it (a loss for a log, a norm for a comparison) is 1, or False.

    Attributes:
        shell: the tensor on the meta device; storages, and what shares them, are those of the shells.
    """

    shell: torch.Tensor

    @staticmethod
    def __new__(cls: type[Blank], shell: torch.Tensor) -> Blank:
        """Wrap a tensor of the meta device."""
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
        """Run the operator on the shells."""
        return run_blank(func, args, kwargs)


def run_blank(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """An operator on arguments of which one at least is blank.

    Args:
        func: of ``torch.ops``.
        args, kwargs: its arguments.
    """
    if func is _READ_SCALAR:
        return _some_scalar(args[0].dtype)
    if func is _ADD and _summed_in_place(args):
        return args[0]
    owners: dict[int, Blank] = {}
    shells = tuple([_inside(arg, owners) for arg in args])
    named = {name: _inside(value, owners) for name, value in kwargs.items()} if kwargs else {}
    return _outside(_shapes.run(func, shells, named), owners)


def _summed_in_place(args: tuple[Any, ...]) -> bool:
    """Whether autograd's engine adds up the gradients of a tensor that was used twice, and may write into the first.

    It may where nobody else has that, and does not where it is of a subclass, as here
    (``InputBuffer::accumulate`` in torch/csrc/autograd/input_buffer.cpp).
    """
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
    """A new one, contiguous."""
    return Blank(torch.empty(shape, dtype=dtype, device=_META))


def emptied(tensor: torch.Tensor) -> Blank:
    """A real tensor without its values."""
    return Blank(torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=_META))


def _inside(value: Any, owners: dict[int, Blank]) -> Any:
    """What an operator takes, on the meta device."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is Blank or isinstance(value, Blank):
        owners[id(value.shell)] = value
        return value.shell
    if isinstance(value, torch.Tensor):
        if value.is_meta:
            return value
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=_META)
    if kind is list or isinstance(value, (list, tuple)):
        return [_inside(one, owners) for one in value]
    return _META if kind is torch.device else value


def _outside(value: Any, owners: dict[int, Blank]) -> Any:
    """What an operator returns; an argument that it wrote into is that argument."""
    if isinstance(value, torch.Tensor):
        owner = owners.get(id(value))
        return Blank(value) if owner is None else owner
    if isinstance(value, (list, tuple)):
        return type(value)([_outside(one, owners) for one in value]) if type(value) in (list, tuple) else value
    return value


def _some_scalar(dtype: torch.dtype) -> bool | int | float:
    if dtype == torch.bool:
        return False
    return 1.0 if dtype.is_floating_point else 1
