"""The model that a recipe trains, as its run builds it, on tensors without values; bitsandbytes' layers included."""

import functools
import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.quantizers import AutoHfQuantizer

from hf_efficient.facts.environment import replaced
from hf_efficient.model.adapter import add_adapter, round_in_training
from hf_efficient.model.fast_layers import checked_attention, known_attention
from hf_efficient.model.four_bit_experts import experts_are_packed, four_bit_experts
from hf_efficient.model.load import quantization_config
from hf_efficient.planning.model_config import meta_model, model_config, weights_dtype
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.schema import ModelSection, QuantizationSection, Recipe
from hf_efficient.simulate.blank import Blank, blank, make_blank

BLOCK = 64
"""Values of a weight that share a constant; what transformers leaves bitsandbytes at."""
CONSTANTS_BLOCK = 256
"""Constants that share one of their own, with double quantization."""


class Params4bit(Blank):
    """A packed weight, under the name by which PEFT's DoRA knows what it must unpack. ``n`` values in blocks of 64 take
    ``n / 2`` bytes packed, and per block one constant: 4 bytes (float32), or with double quantization 1 byte, plus
    4 bytes for every 256 of these; every count is rounded up. Source: Dettmers et al. 2023 (QLoRA), section 3, and
    ``bitsandbytes.functional.quantize_4bit`` (0.50)."""


class Int8Params(Blank):
    """A rounded weight, a byte per value and a float32 constant per row (Dettmers et al. 2022, LLM.int8())."""


def plain_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Give every unpacked ``Linear4bit`` on the meta device ordinary parameters, which PEFT's DoRA can copy."""
    import bitsandbytes as bnb

    for layer in model.modules():
        if isinstance(layer, bnb.nn.Linear4bit):
            own: Any = layer.weight
            weight: Any = nn.Parameter(own.data.to(dtype), requires_grad=False)
            weight.compress_statistics, weight.quant_type = own.compress_statistics, own.quant_type
            layer.weight = weight
            if layer.bias is not None:
                layer.bias = nn.Parameter(layer.bias.data.to(dtype), requires_grad=layer.bias.requires_grad)


def blank_quantized(model: nn.Module, dtype: torch.dtype) -> None:
    """Give every layer of bitsandbytes on the meta device its packed or rounded weight; others stay as they are."""
    import bitsandbytes as bnb

    for layer in model.modules():
        if isinstance(layer, bnb.nn.Linear4bit):
            shape = torch.Size((layer.out_features, layer.in_features))
            own: Any = layer.weight
            layer.weight = _packed(shape, dtype, double=own.compress_statistics, kind=own.quant_type)
            vars(layer)["support_avx512bf16_for_cpu"] = False  # the run's own setting; see callbacks/checks.py
        elif isinstance(layer, bnb.nn.Linear8bitLt):
            _fill_eight_bit(layer, dtype)
    for layer, forward in four_bit_experts(model):
        for name, one in list(layer.named_parameters(recurse=False)):
            shape, config = getattr(one, "ds_shape", one.shape), forward.config
            double, kind = config.bnb_4bit_use_double_quant, config.bnb_4bit_quant_type
            setattr(layer, name, _packed(shape, dtype, double=double, kind=kind))


def quantization_constants(layer: nn.Module) -> list[torch.Tensor]:
    """The constants of a layer's 4-bit weights, or of an 8-bit layer's rows, which are no parameters; else none."""
    rows = getattr(getattr(layer, "state", None), "SCB", None)
    if rows is not None:
        return [rows]
    held = []
    for parameter in layer.parameters(recurse=False):
        state = getattr(parameter, "quant_state", None)
        if state is not None:
            held += [state.absmax, state.code]
        if state is not None and state.state2 is not None:
            held += [state.offset, state.state2.absmax, state.state2.code]
    return held


def values_of(parameter: torch.Tensor) -> int:
    """The values that a parameter stands for, two in a byte where it is packed."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else int(state.shape.numel())


def _packed(shape: torch.Size, dtype: torch.dtype, *, double: bool, kind: str) -> Any:
    from bitsandbytes.functional import QuantState

    values = shape.numel()
    blocks = math.ceil(values / BLOCK)
    nested = None
    if double:
        nested = QuantState(
            blank(math.ceil(blocks / CONSTANTS_BLOCK), dtype=torch.float32),
            code=blank(256, dtype=torch.float32),
            blocksize=CONSTANTS_BLOCK,
            dtype=torch.float32,
        )
    weight: Any = Params4bit(blank(math.ceil(values / 2), 1, dtype=torch.uint8).shell)
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
    return weight


def is_eight_bit(recipe: Recipe) -> bool:
    section = recipe.adapter.quantization
    return recipe.adapter.method == "qlora" and section is not None and section.bits == 8


def kernels_of_a_gpu(recipe: Recipe) -> AbstractContextManager[None]:
    """Within, ``bitsandbytes.matmul`` of 8-bit weights goes the way that it goes on a GPU, not the one of a CPU."""
    if not is_eight_bit(recipe):
        return nullcontext()
    from bitsandbytes.autograd import _functions

    return replaced(_functions, "MatMul8bitFp", _functions.MatMul8bitLt)


def _fill_eight_bit(layer: Any, dtype: torch.dtype) -> None:
    shape = (layer.out_features, layer.in_features)
    weight: Any = Int8Params(blank(*shape, dtype=torch.int8).shell)
    vars(weight)["_is_param"] = True  # what makes a subclass a parameter (torch.nn.Parameter.__new__)
    weight.CB = weight.SCB = None  # as they are from the first forward on
    layer.weight = weight
    layer.state.CB = weight
    layer.state.SCB = blank(layer.out_features, dtype=torch.float32)
    if layer.bias is not None:
        layer.bias = nn.Parameter(layer.bias.data.to(dtype), requires_grad=layer.bias.requires_grad)


def blank_model(recipe: Recipe, config: PretrainedConfig, *, seed: int, checkpointing: bool) -> PreTrainedModel:
    """Base, quantization and adapter (then PEFT's); classes and dtypes of the run. ``ModelError``: transformers cannot
    build it, or the adapter does not fit. ``SetupError``: an attention implementation or a package is missing."""
    section = recipe.adapter.quantization or QuantizationSection() if recipe.adapter.method == "qlora" else None
    base = _base(recipe.model, config, section, scores=OBJECTIVES[recipe.objective].scores)
    if recipe.model.qat is not None:
        round_in_training(base, recipe.model.qat)
    adapted: Any = add_adapter(base, recipe.adapter, seed=seed, checkpointing=checkpointing, on_meta=True)
    if recipe.adapter.method != "full":  # TRL may add a frozen copy of the adapter
        vars(adapted)["add_adapter"] = functools.partial(adapted.add_adapter, low_cpu_mem_usage=True)
    return _without_values(adapted, section, weights_dtype(recipe.model, config))


def blank_teacher(recipe: Recipe) -> PreTrainedModel:
    """What ``distill.teacher`` names, as the run loads it; raises as ``blank_model``."""
    assert recipe.distill is not None
    section = recipe.distill.teacher
    model = section.as_model(recipe.model)
    config = model_config(model)
    base = _base(model, config, section.quantization)
    return _without_values(base, section.quantization, weights_dtype(model, config))


def _base(
    model: ModelSection, config: PretrainedConfig, quantization: QuantizationSection | None, *, scores: bool = False
) -> PreTrainedModel:
    options: dict[str, Any] = {"dtype": weights_dtype(model, config)}
    if model.attn_implementation is not None:
        options["attn_implementation"] = known_attention(model.attn_implementation)
    with checked_attention(options.get("attn_implementation")) as built:
        base = meta_model(model, config, scores=scores, **options)
        built.append(base)
    if quantization is not None:
        with experts_are_packed():
            quantizer = AutoHfQuantizer.from_config(quantization_config(quantization), pre_quantized=False)
        quantizer.preprocess_model(model=base, device_map=None)
        kind = f"is_loaded_in_{quantization.bits}bit"
        vars(base).update({kind: True, "is_quantized": True, "hf_quantizer": quantizer})  # as from_pretrained leaves it
        plain_weights(base, options["dtype"])
    return base


def _without_values(model: Any, quantization: QuantizationSection | None, dtype: torch.dtype) -> PreTrainedModel:
    if quantization is not None:
        blank_quantized(model, dtype)
    make_blank(model)
    vars(model)["to"] = lambda *args, **kwargs: model  # it is where it is to be
    return model
