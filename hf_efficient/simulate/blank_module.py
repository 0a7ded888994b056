"""A module on the meta device to one whose parameters are blank tensors: it runs as on a CPU, and holds no memory."""

from __future__ import annotations

import torch
from torch import nn

from hf_efficient.simulate.blank import Blank, blank


def make_blank(module: nn.Module) -> None:
    """Put blank tensors of the same shape and dtype in place of all parameters and buffers on the meta device.

    Tied parameters stay tied; what is elsewhere stays as it is.
    """
    made: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in list(part._parameters.items()):
            if parameter is None or not parameter.is_meta:
                continue
            if id(parameter) not in made:
                made[id(parameter)] = nn.Parameter(_blank(parameter), requires_grad=parameter.requires_grad)
            part._parameters[name] = made[id(parameter)]
        for name, buffer in list(part._buffers.items()):
            if buffer is not None and buffer.is_meta:
                part._buffers[name] = _blank(buffer)


def compute_in(module: nn.Module, dtype: torch.dtype) -> None:
    """Put parameters of another dtype in place of those in float32; tied ones stay tied.

    Args:
        module: with blank parameters.
        dtype: of the new ones.
    """
    made: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and parameter.dtype == torch.float32:
                if id(parameter) not in made:
                    cast = nn.Parameter(blank(*parameter.shape, dtype=dtype), requires_grad=parameter.requires_grad)
                    made[id(parameter)] = cast
                part._parameters[name] = made[id(parameter)]


def _blank(tensor: torch.Tensor) -> Blank:
    return Blank(torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"))
