"""bitsandbytes' 4-bit layers with packed weights and quantization constants that have no values.

Bytes of a weight of ``n`` values in blocks of 64: ``n / 2`` packed, and per block one constant: 4 bytes (float32), or
with double quantization 1 byte, plus 4 bytes for every 256 of these. Source: Dettmers et al. 2023 (QLoRA), section 3,
and ``bitsandbytes.functional.quantize_4bit`` (0.50), which rounds every count up.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from hf_efficient.simulate.blank import Blank, blank

BLOCK = 64
"""Values of a weight that share a constant; what transformers leaves bitsandbytes at."""
CONSTANTS_BLOCK = 256
"""Constants that share one of their own, with double quantization."""


class Params4bit(Blank):
    """A packed weight, under the name by which PEFT's DoRA knows what it must unpack."""

    quant_state: Any
    compress_statistics: bool
    quant_type: str


def plain_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Give every ``Linear4bit`` on the meta device, not packed yet, ordinary parameters of the model's dtype.

    PEFT's DoRA copies the weight, which bitsandbytes' own class cannot be there; the bias is made in float32, and in a
    run then loaded in the model's dtype.

    Args:
        model: without an adapter.
        dtype: of the weights before they are quantized.
    """
    import bitsandbytes as bnb

    for layer in model.modules():
        if isinstance(layer, bnb.nn.Linear4bit):
            own: Any = layer.weight
            weight: Any = nn.Parameter(own.data.to(dtype), requires_grad=False)
            weight.compress_statistics, weight.quant_type = own.compress_statistics, own.quant_type
            layer.weight = weight
            if layer.bias is not None:
                layer.bias = nn.Parameter(layer.bias.data.to(dtype), requires_grad=layer.bias.requires_grad)


def blank_four_bit(model: nn.Module, dtype: torch.dtype) -> None:
    """Give every ``Linear4bit`` of a model on the meta device its packed weight; other layers stay as they are.

    Args:
        model: with or without an adapter.
        dtype: of the weights before they were quantized.
    """
    import bitsandbytes as bnb

    for layer in model.modules():
        if isinstance(layer, bnb.nn.Linear4bit):
            _fill(layer, dtype)


def quantization_constants(layer: nn.Module) -> list[torch.Tensor]:
    """The constants of a 4-bit layer, which are no parameters; empty for another layer."""
    state = getattr(getattr(layer, "weight", None), "quant_state", None)
    if state is None:
        return []
    held = [state.absmax, state.code]
    if state.state2 is not None:
        held += [state.offset, state.state2.absmax, state.state2.code]
    return held


def values_of(parameter: torch.Tensor) -> int:
    """The values that a parameter stands for, two in a byte where it is packed."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else int(state.shape.numel())


def _fill(layer: Any, dtype: torch.dtype) -> None:
    from bitsandbytes.functional import QuantState

    shape = torch.Size((layer.out_features, layer.in_features))
    values = shape.numel()
    blocks = math.ceil(values / BLOCK)
    double, kind = layer.weight.compress_statistics, layer.weight.quant_type
    nested = None
    if double:
        nested = QuantState(
            blank(math.ceil(blocks / CONSTANTS_BLOCK), dtype=torch.float32),
            code=blank(256, dtype=torch.float32),
            blocksize=CONSTANTS_BLOCK,
            dtype=torch.float32,
        )
    weight = Params4bit(blank(math.ceil(values / 2), 1, dtype=torch.uint8).shell)
    vars(weight)["_is_param"] = True  # what makes a subclass a parameter (torch.nn.Parameter.__new__)
    weight.quant_state = QuantState(
        blank(blocks, dtype=torch.uint8 if double else torch.float32),
        shape=shape,
        code=blank(16, dtype=torch.float32),
        blocksize=BLOCK,
        quant_type=kind,
        dtype=dtype,
        offset=blank(dtype=torch.float32) if double else None,
        state2=nested,
    )
    weight.compress_statistics, weight.quant_type = double, kind
    layer.weight = weight
    layer.support_avx512bf16_for_cpu = False  # the run's own setting; see callbacks/four_bit_guard.py
