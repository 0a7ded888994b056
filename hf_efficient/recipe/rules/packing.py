"""Packing and padding-free batches: examples that share a row must not see each other."""

from __future__ import annotations

from hf_efficient.recipe.rules.settings import Contradiction, Settings, reads

__all__ = ["attention_keeps_examples_apart", "packing_needs_a_length", "padding_free_has_no_length"]

# From position ids that start again, transformers (>= 5.17) builds a block-diagonal mask for the first three;
# the flash kernels take the sequence boundaries.
KEEPS_APART = (
    "sdpa",
    "eager",
    "flex_attention",
    "flash_attention_2",
    "flash_attention_3",
    "flash_attention_4",
)


@reads("method", "model.attn_implementation", "train.packing", "train.eval_packing", "train.packing_strategy")
def attention_keeps_examples_apart(settings: Settings) -> list[Contradiction]:
    """An attention that is not known to respect example boundaries mixes packed examples.

    ``packing_strategy: wrapped`` cuts one stream of text into rows and means its examples to run on.
    """
    attention = settings.recipe.model.attn_implementation
    packs = settings.train("packing") or settings.train("eval_packing")
    if not packs or attention is None or settings.train("packing_strategy") == "wrapped":
        return []
    # Kernels of the hub are named by their repository: kernels-community/flash-attn2.
    if attention in KEEPS_APART or "flash-attn" in attention or "flash_attn" in attention:
        return []
    message = f"is {attention}, which is not known to keep packed examples apart."
    remedy = f"Write one of {', '.join(KEEPS_APART)}, or `train.packing: false`."
    return [("model.attn_implementation", message, remedy)]


@reads("train.packing", "train.eval_packing", "train.max_length")
def packing_needs_a_length(settings: Settings) -> list[Contradiction]:
    """Rows are packed up to ``max_length``."""
    packs = settings.train("packing") or settings.train("eval_packing")
    if not packs or settings.train("max_length") is not None:
        return []
    message = "is null, but packing fills rows of this length."
    return [("train.max_length", message, "Write a length in tokens, for instance 2048.")]


@reads("method", "train.packing", "train.padding_free", "train.max_length")
def padding_free_has_no_length(settings: Settings) -> list[Contradiction]:
    """TRL does not cut examples to ``max_length`` in padding-free batches without packing, and refuses."""
    if settings.recipe.method != "sft" or not settings.train("padding_free") or settings.train("packing"):
        return []
    if settings.train("max_length") is None:
        return []
    length = settings.train("max_length")
    message = f"is true without packing, so `train.max_length: {length}` would not be enforced."
    return [("train.padding_free", message, "Write `train.packing: true`, or `train.max_length: null`.")]
