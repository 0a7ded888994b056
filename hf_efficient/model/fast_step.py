"""What ``auto`` means in the keys of the fast step: ``model.attn_implementation``, ``adapter.fused``,
``train.loss_type``. Each is a switch; none changes what is computed, rounding differs."""

from typing import Any

from transformers.utils import is_flash_attn_2_available

from hf_efficient.recipe.objectives import OBJECTIVES
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
        bits = None if adapter.quantization is None else adapter.quantization.bits
        is_whole = recipe.distributed.strategy not in ("zero3", "fsdp2") and bits in (None, 4)
        fuses = device_type == "cpu" and adapter.method != "full" and not adapter.dora and is_whole
        adapter = adapter.model_copy(update={"fused": fuses})
    return recipe.model_copy(update={"model": model, "adapter": adapter})


def settled_options(recipe: Recipe) -> dict[str, Any]:
    """``train:`` with the loss that its ``auto`` means: ``chunked_nll``, but ``nll`` where something needs whole
    logits, and with ZeRO-3, where the head may be in flight when DeepSpeed partitions it again. ``save_steps: auto`` is
    0: transformers saves at the end alone, and ``callbacks/stop.py`` before."""
    options = {**recipe.train, **({"save_steps": 0} if recipe.train.get("save_steps") == "auto" else {})}
    if options.get("loss_type") != "auto":
        return options
    fits = recipe.distributed.strategy != "zero3" and fits_chunked_loss(
        Settings(recipe, train_fields(recipe.objective))
    )
    return {**options, "loss_type": "chunked_nll" if fits else "nll"}


def fast_step_lines(recipe: Recipe) -> list[str]:
    name = recipe.model.attn_implementation or ""
    apart = _joins_documents(recipe) and (name == "documents" or "flash" in name)
    on = {
        "each document's attention by itself (model.attn_implementation)": apart,
        "LoRA layers and frozen norms as one function each (adapter.fused)": recipe.adapter.fused is True,
        "head and loss on targets alone (train.loss_type)": settled_options(recipe).get("loss_type") == "chunked_nll",
    }
    return ["fast step: " + "; ".join(name for name, is_on in on.items() if is_on)] if any(on.values()) else []


def _attention(recipe: Recipe, device_type: str) -> str | None:
    if device_type == "cpu":
        return "documents" if _joins_documents(recipe) else None
    half = any(recipe.train.get(key) for key in ("bf16", "fp16")) or recipe.model.dtype in ("bfloat16", "float16")
    return "flash_attention_2" if device_type == "cuda" and half and is_flash_attn_2_available() else None


def _joins_documents(recipe: Recipe) -> bool:
    packs = recipe.train.get("packing") and recipe.train.get("packing_strategy", "bfd") != "wrapped"
    return OBJECTIVES[recipe.objective].imitates and bool(packs or recipe.train.get("padding_free"))
