"""How a live model computes its layers: by which attention kernel, and which layers twice."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

from torch import nn

from hf_efficient.errors import ModelError
from hf_efficient.estimate.flops import Checkpointing
from hf_efficient.estimate.step_work import Kernel
from hf_efficient.models.structure import base_model, layer_of

__all__ = ["checkpointing_of", "kernel_of"]


def kernel_of(model: nn.Module, device_type: str) -> Kernel:
    """Which pairs of query and key the model's attention computes in training on this type of device.

    Raises:
        ModelError: that is not known of this implementation.
    """
    config = base_model(model).config.get_text_config()
    name = getattr(config, "_attn_implementation", None)
    if name == "eager":
        return "square"
    if name == "sdpa":
        # torch's fused kernel for CPUs knows no dropout; in its place plain products are computed, and masked.
        plain = device_type == "cpu" and getattr(config, "attention_dropout", 0.0) > 0
        return "square" if plain else "sdpa"
    if isinstance(name, str) and ("flash" in name or name == "flex_attention"):
        return "documents"
    raise ModelError(f"attention implementation {name!r}: which pairs it computes is not known here.")


def checkpointing_of(model: nn.Module) -> tuple[Checkpointing, Collection[int] | None]:
    """The way of activation checkpointing, and the layers that it is on for (None: all of them).

    Raises:
        ModelError: what is computed again is not known: selective checkpointing, or somebody's own.
    """
    layers: dict[int, Any] = {}
    for name, module in base_model(model).named_modules():
        if type(module).__name__ == "CheckpointWrapper":  # torch's, which FSDP's activation checkpointing puts in
            raise ModelError(f"{name}: what FSDP's activation checkpointing computes again is not known here.")
        layer = layer_of(name)
        if layer is not None and name.endswith(f"layers.{layer}"):
            layers[layer] = module
    on = {layer for layer, module in layers.items() if getattr(module, "gradient_checkpointing", False)}
    if not on:
        return "none", None
    ways = {_way(layers[layer]) for layer in on}
    if len(ways) > 1:
        raise ModelError("activation checkpointing: its layers do it in different ways.")
    return ways.pop(), None if len(on) == len(layers) else frozenset(on)


def _way(layer: Any) -> Checkpointing:
    function = getattr(layer, "_gradient_checkpointing_func", None)
    if not isinstance(function, functools.partial):
        raise ModelError("activation checkpointing: what a function of its own computes again is not known here.")
    if function.keywords.get("context_fn") is not None:
        raise ModelError("activation checkpointing: what the selective way computes again is not known here.")
    reentrant = function.keywords.get("use_reentrant")
    if reentrant is None:
        raise ModelError("activation checkpointing: gradient_checkpointing_kwargs does not say use_reentrant.")
    return "reentrant" if reentrant else "non_reentrant"
