"""What a parameter is as a whole, where a process holds a share of it, or none for the moment."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["whole_count", "whole_shape"]


def whole_shape(parameter: torch.Tensor) -> torch.Size:
    """The shape of the whole.

    ZeRO-3 leaves an empty tensor in a parameter's place (DeepSpeed's ``ds_shape``); a DTensor of FSDP2 has the shape of
    the whole itself.
    """
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape


def whole_count(model: nn.Module, *, trained: bool) -> int:
    """Numbers in all parameters, or in those that are trained; a packed 4-bit weight counts as it is stored."""
    return sum(
        whole_shape(parameter).numel() for parameter in model.parameters() if parameter.requires_grad or not trained
    )
