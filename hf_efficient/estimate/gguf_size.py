"""The size of a GGUF file before it is written: the type of each tensor, and the bytes of its blocks.

The mixes are those of llama.cpp for a dense decoder without an importance matrix (``llama_tensor_get_type_impl`` in
``src/llama-quant.cpp``, commit 007dbbf), but for its 0.2% more at Llama's 70B. Its published sizes of Llama-3.1-8B are
in ``tools/quantize/README.md``. Q6_K needs llama.cpp's compiled code: the head of a Q4_0 file is Q8_0 here.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from hf_efficient.errors import ModelError
from hf_efficient.estimate.model_shape import ModelShape, linears_of_layer, shape_of

WRITTEN = ("F16", "Q8_0", "Q4_0")
"""Quantizations that need no compiler."""

MIXES = (*WRITTEN, "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_L", "Q2_K")

ARCHITECTURES: Mapping[str, str] = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""transformers' ``model_type`` to ``general.architecture``."""

BLOCKS: Mapping[str, tuple[int, int]] = {
    "F32": (1, 4), "F16": (1, 2), "Q8_0": (32, 34), "Q4_0": (32, 18), "Q5_0": (32, 22), "Q5_1": (32, 24),
    "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210),
}  # fmt: skip
"""Values and bytes of a block."""

_NARROW = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""In place of types whose blocks of 256 values a row does not fill."""

_MORE_BITS = {("Q4_K_M", "v_proj"), ("Q4_K_M", "down_proj"), ("Q5_K_M", "v_proj"), ("Q5_K_M", "down_proj")}
_ELSEWHERE = {
    **dict.fromkeys((("Q3_K_L", "v_proj"), ("Q3_K_L", "down_proj"), ("Q3_K_L", "o_proj")), "Q5_K"),
    **dict.fromkeys((("Q2_K", "down_proj"), ("Q2_K", "o_proj")), "Q3_K"),
}


class Tensor(NamedTuple):
    """``module``: the last part of its name (``v_proj``, ``embed_tokens``, ``lm_head``); None for norms and biases,
    whose ``columns`` are all their values."""

    module: str | None
    layer: int
    rows: int
    columns: int


def gguf_shape(config: Any) -> ModelShape:
    """The shape of a model that a GGUF file can hold; ``ModelError`` for another architecture."""
    model_type = str(config["model_type"] if isinstance(config, Mapping) else config.model_type)
    if model_type not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelError(
            f"--to: GGUF files are written for {known}, and this model is of type {model_type}. Write --to merged."
        )
    return shape_of(config)


def gguf_bytes(shape: ModelShape, mix: str) -> int:
    """Bytes of all tensors; the tokenizer's lists come on top (8 MB for 128,000 tokens)."""
    blocks = ((one.rows * one.columns, *BLOCKS[type_of(one, shape, mix)]) for one in _tensors(shape))
    return sum(values // width * size for values, width, size in blocks)


def type_of(tensor: Tensor, shape: ModelShape, mix: str) -> str:
    """The type that ``mix`` gives a tensor: ``Q6_K`` for a ``v_proj`` of the first layers in ``Q4_K_M``."""
    if tensor.module is None:
        return "F32"
    wanted = _wanted(tensor, shape, mix)
    if tensor.columns % BLOCKS[wanted][0]:
        wanted = _NARROW.get(wanted, "F16")
    return wanted if tensor.columns % BLOCKS[wanted][0] == 0 else "F16"


def _wanted(tensor: Tensor, shape: ModelShape, mix: str) -> str:
    base = mix[:4] if "_K" in mix else mix
    module, layer, layers = tensor.module, tensor.layer, shape.layers
    if module == "lm_head" or (module == "embed_tokens" and shape.tied_embeddings):
        has_blocks = tensor.columns % BLOCKS[base][0] == 0
        return "F16" if mix == "F16" else "Q6_K" if "_K" in mix and has_blocks else "Q8_0"
    if (mix, module) in _MORE_BITS:
        eighth = layers // 8
        more = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
        return "Q6_K" if more else base
    if (mix, module) == ("Q2_K", "v_proj"):
        return "Q4_K" if shape.heads // shape.kv_heads >= 4 else "Q3_K"
    return _ELSEWHERE.get((mix, str(module)), base)


def _tensors(shape: ModelShape) -> Iterator[Tensor]:
    yield Tensor("embed_tokens", 0, shape.vocabulary, shape.hidden)
    if not shape.tied_embeddings:
        yield Tensor("lm_head", 0, shape.vocabulary, shape.hidden)
    yield Tensor(None, 0, 1, shape.hidden)
    for layer in range(shape.layers):
        for linear in linears_of_layer(shape, layer).values():
            yield Tensor(linear.name, layer, linear.outputs, linear.inputs)
            if linear.bias:
                yield Tensor(None, layer, 1, linear.outputs)
        yield Tensor(None, layer, 1, shape.norms_per_layer * shape.hidden + sum(shape.qk_norm))
