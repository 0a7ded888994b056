"""bitsandbytes' 8-bit layers (LLM.int8()) with weights that have no values.

A weight takes a byte per value, and each of its rows a float32 constant. Source: Dettmers et al. 2022 (LLM.int8()), and
``bitsandbytes.nn.Int8Params`` (0.50).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hf_efficient.data.sources import replaced
from hf_efficient.recipe.schema import Recipe
from hf_efficient.simulate.blank import Blank, blank


def is_eight_bit(recipe: Recipe) -> bool:
    """Whether the base is in 8 bits."""
    section = recipe.adapter.quantization
    return recipe.adapter.method == "qlora" and section is not None and section.bits == 8


def blank_eight_bit(model: nn.Module, dtype: torch.dtype) -> None:
    """Give every ``Linear8bitLt`` of a model on the meta device its rounded weight; other layers stay as they are.

    Args:
        model: with or without an adapter.
        dtype: of what is not quantized, the layers' own bias included.
    """
    import bitsandbytes as bnb

    for layer in model.modules():
        if isinstance(layer, bnb.nn.Linear8bitLt):
            _fill(layer, dtype)


def row_constants(layer: nn.Module) -> list[torch.Tensor]:
    """The constants of an 8-bit layer's rows, which are no parameter; empty for another layer."""
    constants = getattr(getattr(layer, "state", None), "SCB", None)
    return [] if constants is None else [constants]


@contextmanager
def kernels_of_a_gpu() -> Iterator[None]:
    """Within, ``bitsandbytes.matmul`` goes the way that it goes on a GPU, not the one of a CPU."""
    from bitsandbytes.autograd import _functions

    with replaced(_functions, "MatMul8bitFp", _functions.MatMul8bitLt):
        yield


def _fill(layer: Any, dtype: torch.dtype) -> None:
    shape = (layer.out_features, layer.in_features)
    weight = Int8Params(blank(*shape, dtype=torch.int8).shell)
    vars(weight)["_is_param"] = True  # what makes a subclass a parameter (torch.nn.Parameter.__new__)
    weight.CB = weight.SCB = None  # as they are from the first forward on
    layer.weight = weight
    layer.state.CB = weight
    layer.state.SCB = blank(layer.out_features, dtype=torch.float32)
    if layer.bias is not None:
        layer.bias = nn.Parameter(layer.bias.data.to(dtype), requires_grad=layer.bias.requires_grad)


class Int8Params(Blank):
    """A rounded weight."""

    CB: torch.Tensor | None
    SCB: torch.Tensor | None
