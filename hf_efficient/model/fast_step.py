"""The keys of the fast step that say ``auto``: what they mean on a device, and the line that a run prints of each.

Each has its own switch: ``model.attn_implementation``, ``adapter.fused``, ``train.loss_type``. None changes what is
computed; rounding differs.
"""

from typing import Any

from hf_efficient.recipe.rules.settings import Settings
from hf_efficient.recipe.rules.training import fits_chunked_loss
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_fields import train_fields


def settle_fast_step(recipe: Recipe, device_type: str) -> Recipe:
    """The recipe with a value in place of ``auto``, for a device of torch's ``cpu``, ``cuda``, ...

    - Attention: on a CPU each document of packed rows by itself; on a GPU FlashAttention 2 where it is installed and
      the training is in 16 bits; else transformers' default.
    - Fused LoRA: on a CPU, for whole weights of 4 or 16 bits and more. It was not measured on a GPU.
    """
    model, adapter = recipe.model, recipe.adapter
    if model.attn_implementation == "auto":
        model = model.model_copy(update={"attn_implementation": _attention(recipe, device_type)})
    if adapter.fused == "auto":
        adapter = adapter.model_copy(update={"fused": _fuses(recipe, device_type)})
    return recipe.model_copy(update={"model": model, "adapter": adapter})


def settled_options(recipe: Recipe) -> dict[str, Any]:
    """``train:`` with the loss that its ``auto`` means: ``chunked_nll``, but ``nll`` where something needs whole
    logits, and with ZeRO-3, where the head may be in flight when DeepSpeed partitions it again."""
    if recipe.train.get("loss_type") != "auto":
        return recipe.train
    fits = recipe.distributed.strategy != "zero3" and fits_chunked_loss(
        Settings(recipe, train_fields(recipe.objective))
    )
    return {**recipe.train, "loss_type": "chunked_nll" if fits else "nll"}


def fast_step_lines(recipe: Recipe) -> list[str]:
    on = {
        "each document's attention by itself (model.attn_implementation)": _keeps_documents_apart(recipe),
        "LoRA layers as one function (adapter.fused)": recipe.adapter.fused is True,
        "head and loss on targets alone (train.loss_type)": settled_options(recipe).get("loss_type") == "chunked_nll",
    }
    return ["fast step: " + "; ".join(name for name, is_on in on.items() if is_on)] if any(on.values()) else []


def _attention(recipe: Recipe, device_type: str) -> str | None:
    from transformers.utils import is_flash_attn_2_available

    if device_type == "cpu":
        return "documents" if _joins_documents(recipe) else None
    half = any(recipe.train.get(key) for key in ("bf16", "fp16")) or recipe.model.dtype in ("bfloat16", "float16")
    return "flash_attention_2" if device_type == "cuda" and half and is_flash_attn_2_available() else None


def _joins_documents(recipe: Recipe) -> bool:
    packs = recipe.train.get("packing") and recipe.train.get("packing_strategy", "bfd") != "wrapped"
    return recipe.objective == "sft" and bool(packs or recipe.train.get("padding_free"))


def _fuses(recipe: Recipe, device_type: str) -> bool:
    quantization = recipe.adapter.quantization
    whole = recipe.distributed.strategy not in ("zero3", "fsdp2") and (quantization is None or quantization.bits == 4)
    return device_type == "cpu" and recipe.adapter.method != "full" and not recipe.adapter.dora and whole


def _keeps_documents_apart(recipe: Recipe) -> bool:
    name = recipe.model.attn_implementation or ""
    return _joins_documents(recipe) and (name == "documents" or "flash" in name)
