"""Whether a live model is made of the matrix products that its configuration says."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from hf_efficient.errors import ModelError
from hf_efficient.estimate.model_shape import ModelShape, linears_of_layer
from hf_efficient.estimate.trained import head_linear

__all__ = ["base_model", "layer_of", "linear_modules", "shape_of_model"]

_WRAPPED = ("base_layer", "original_module", "modules_to_save")


def base_model(model: nn.Module) -> Any:
    """The transformers model inside PEFT's, or the model itself."""
    inner = getattr(model, "get_base_model", None)
    return model if inner is None else inner()


def shape_of_model(model: nn.Module) -> ModelShape:
    """The shape that the configuration describes, held against the model's linear layers.

    Raises:
        ModelError: the architecture is not known, or the model is not what its configuration describes: it has other
            linear layers, or a head that is no language model's.
    """
    base = base_model(model)
    config = getattr(base, "config", None)
    if config is None:
        raise ModelError(f"{type(base).__name__}: it has no configuration to know its FLOPs from.")
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    shape = ModelShape.from_config(text)
    _check(shape, linear_modules(base))
    return shape


def linear_modules(base: nn.Module) -> dict[str, tuple[int, int]]:
    """Features in and out of every linear layer by its dotted name; adapters, and what they wrap, are left out."""
    found: dict[str, tuple[int, int]] = {}
    for name, module in base.named_modules():
        sizes = getattr(module, "in_features", None), getattr(module, "out_features", None)
        parts = name.split(".")
        kept = [part for part in parts if part not in _WRAPPED]
        if any(part.startswith("lora_") for part in parts) or not (
            isinstance(sizes[0], int) and isinstance(sizes[1], int)
        ):
            continue
        if "modules_to_save" in parts:
            kept = kept[:-1]  # the adapter's name
        found.setdefault(".".join(kept), (sizes[0], sizes[1]))
    return found


def layer_of(name: str) -> int | None:
    """The index of the decoder layer that a module of this dotted name lies in; None outside of them."""
    found = re.search(r"(?:^|\.)layers\.(\d+)(?:\.|$)", name)
    return int(found[1]) if found else None


def _check(shape: ModelShape, modules: dict[str, tuple[int, int]]) -> None:
    expected: dict[tuple[int | None, str], tuple[int, int]] = {}
    for layer in range(shape.layers):
        for linear in linears_of_layer(shape, layer).values():
            if linear.is_module:
                expected[layer, linear.name] = linear.inputs, linear.outputs
    head = head_linear(shape)
    expected[None, head.name] = head.inputs, head.outputs
    for name, sizes in modules.items():
        if expected.pop((layer_of(name), name.rsplit(".", 1)[-1]), None) != sizes:
            raise ModelError(
                f"{name}: a linear layer of {sizes[0]} to {sizes[1]} features is not what a {shape.model_type} model "
                "of this configuration has; its FLOPs are not known."
            )
    if expected:
        where, missing = next(iter(expected))
        place = "" if where is None else f" in layer {where}"
        raise ModelError(f"{missing}: the model has no such linear layer{place}; its FLOPs are not known.")
