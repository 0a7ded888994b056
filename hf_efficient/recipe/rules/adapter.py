"""Adapter and quantization."""

from __future__ import annotations

import re

from hf_efficient.recipe.rules.settings import Contradiction, Settings, reads

__all__ = [
    "eight_bit_has_no_four_bit_options",
    "full_has_no_adapter",
    "quantization_needs_qlora",
    "targets_are_a_pattern",
]


@reads("adapter.method", "adapter.quantization")
def quantization_needs_qlora(settings: Settings) -> list[Contradiction]:
    """Only ``qlora`` trains on a quantized base."""
    adapter = settings.recipe.adapter
    if adapter.quantization is None or adapter.method == "qlora":
        return []
    bits = adapter.quantization.bits
    if adapter.method == "full":
        message = f"is {bits}-bit, but `adapter.method: full` trains all weights; {bits}-bit weights cannot train."
    else:
        message = f"is {bits}-bit, but `adapter.method: lora` trains on a base that is not quantized."
    return [("adapter.quantization", message, "Write `adapter.method: qlora`, or remove the quantization.")]


@reads("adapter")
def full_has_no_adapter(settings: Settings) -> list[Contradiction]:
    """What shapes or follows an adapter says nothing about full fine-tuning."""
    adapter = settings.recipe.adapter
    if adapter.method != "full":
        return []
    chosen = {
        "dora": adapter.dora,
        "rslora": adapter.rslora,
        "modules_to_save": bool(adapter.modules_to_save),
        "bias": adapter.bias != "none",
        "merge": adapter.merge,
    }
    message = "is set, but `adapter.method: full` trains all weights and has no adapter."
    remedy = "Remove it, or write `adapter.method: lora`."
    return [(f"adapter.{name}", message, remedy) for name, is_chosen in chosen.items() if is_chosen]


@reads("adapter.quantization")
def eight_bit_has_no_four_bit_options(settings: Settings) -> list[Contradiction]:
    """LLM.int8() has one data type, one way to quantize it and computes in the activations' type."""
    quantization = settings.recipe.adapter.quantization
    if quantization is None or quantization.bits != 8:
        return []
    names = ("type", "double_quant", "compute_dtype")
    given = [key for key in (f"adapter.quantization.{name}" for name in names) if settings.was_set(key)]
    message = "is a setting of 4-bit quantization, but `adapter.quantization.bits` is 8."
    return [(key, message, "Remove it, or write `bits: 4`.") for key in given]


@reads("adapter.target_modules")
def targets_are_a_pattern(settings: Settings) -> list[Contradiction]:
    """PEFT takes a text other than ``all-linear`` for a regular expression, once the model was loaded."""
    pattern = settings.recipe.adapter.target_modules
    if not isinstance(pattern, str):
        return []
    try:
        re.compile(pattern)
        return []
    except re.error as error:
        why = f"{error.msg} at position {error.pos}"
    except (OverflowError, RecursionError) as error:
        why = str(error)
    message = f"is neither all-linear nor a valid regular expression: {why}."
    return [("adapter.target_modules", message, "Write all-linear, a list of module names, or a valid expression.")]
