"""Adapter and quantization."""

from __future__ import annotations

from hf_efficient.recipe.rules.settings import Contradiction, Settings, reads

__all__ = ["eight_bit_has_no_four_bit_options", "full_has_no_adapter", "quantization_needs_qlora"]


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
