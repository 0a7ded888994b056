"""What this machine multiplies in, where the recipe leaves it to the machine."""

from __future__ import annotations

import os
from typing import Any, Literal

import torch

from hf_efficient.hardware.devices import cpu_emulates_bf16
from hf_efficient.recipe.precision import compute_dtype
from hf_efficient.recipe.schema import QuantizationSection, Recipe

__all__ = ["emulation_remark", "leave_bf16_off", "settle_compute_dtype"]

_KEY = "adapter.quantization.compute_dtype"


def settle_compute_dtype(recipe: Recipe, device: torch.device) -> Recipe:
    """The recipe with what its 4-bit layers multiply in on this device, for ``compute_dtype: auto``.

    Args:
        recipe: from ``load_recipe``; it stays as it is.
        device: that this process trains on.
    """
    adapter = recipe.adapter
    section = adapter.quantization or QuantizationSection()
    if adapter.method != "qlora" or section.bits != 4 or section.compute_dtype != "auto":
        return recipe
    settled = section.model_copy(update={"compute_dtype": _multiplies_in(device)})
    return recipe.model_copy(update={"adapter": adapter.model_copy(update={"quantization": settled})})


def leave_bf16_off(options: dict[str, Any]) -> None:
    """For a device without it, where the recipe is silent: TRL would train in it.

    The launcher's word goes as well: without one of their own, training arguments take its mixed precision.
    """
    if not options.get("fp16") and options.setdefault("bf16", False) is False:
        os.environ["ACCELERATE_MIXED_PRECISION"] = "no"


def emulation_remark(recipe: Recipe, device: torch.device) -> str:
    """What of a recipe this CPU has to emulate, and what to write; empty where it is nothing."""
    if device.type != "cpu" or not cpu_emulates_bf16():
        return ""
    asked = {"train.bf16: false": recipe.train.get("bf16") is True}
    asked["model.dtype: float32"] = recipe.model.dtype == "bfloat16"
    section = recipe.adapter.quantization or QuantizationSection()
    asked[f"{_KEY}: auto"] = recipe.adapter.method == "qlora" and compute_dtype(section) == "bfloat16"
    remedies = [key for key, is_asked in asked.items() if is_asked]
    if not remedies:
        return ""
    return f"this CPU emulates bfloat16, many times slower than float32: write {', '.join(remedies)}"


def _multiplies_in(device: torch.device) -> Literal["bfloat16", "float16", "float32"]:
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    return "float32" if device.type == "cpu" and cpu_emulates_bf16() else "bfloat16"
