"""The model that a recipe trains, as its run builds it, on tensors without values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hf_efficient.errors import ModelError, SetupError, first_line
from hf_efficient.model.adapter import add_adapter
from hf_efficient.model.load import quantization_config
from hf_efficient.planning.eight_bit import blank_eight_bit
from hf_efficient.planning.four_bit import blank_four_bit, plain_weights
from hf_efficient.planning.weights_dtype import weights_dtype
from hf_efficient.recipe.schema import QuantizationSection, Recipe
from hf_efficient.simulate.blank_module import make_blank

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PretrainedConfig, PreTrainedModel


def blank_model(
    recipe: Recipe, config: PretrainedConfig, *, seed: int, checkpointing: bool
) -> PreTrainedModel | PeftModel:
    """Base, quantization and adapter; the same classes and dtypes as in the run.

    Raises:
        ModelError: transformers cannot build the architecture, or the adapter does not fit.
        SetupError: an attention implementation or a package that is not installed.
    """
    base = _base(recipe, config)
    adapted = add_adapter(base, recipe.adapter, seed=seed, checkpointing=checkpointing, on_meta=True)
    if recipe.adapter.method == "qlora":
        blank_four_bit(adapted, weights_dtype(recipe.model, config))
        blank_eight_bit(adapted, weights_dtype(recipe.model, config))
    make_blank(adapted)
    vars(adapted)["to"] = lambda *args, **kwargs: adapted  # it is where it is to be
    return adapted


def _base(recipe: Recipe, config: PretrainedConfig) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"dtype": weights_dtype(recipe.model, config)}
    if recipe.model.attn_implementation is not None:
        options["attn_implementation"] = recipe.model.attn_implementation
    try:
        with torch.device("meta"):
            base = AutoModelForCausalLM.from_config(config, trust_remote_code=recipe.model.trust_remote_code, **options)
    except ImportError as error:
        raise SetupError(f"model: {first_line(error)}") from error
    except (ValueError, KeyError, RuntimeError) as error:
        raise ModelError(
            f"model: transformers cannot build a causal language model from its configuration: {first_line(error)}"
        ) from error
    if recipe.adapter.method == "qlora":
        _quantize(base, recipe.adapter.quantization or QuantizationSection())
        plain_weights(base, options["dtype"])
    return base


def _quantize(base: PreTrainedModel, section: QuantizationSection) -> None:
    """Put bitsandbytes' layers in place of the linear ones, by transformers' own rules of which."""
    from transformers.quantizers import AutoHfQuantizer

    quantizer = AutoHfQuantizer.from_config(quantization_config(section), pre_quantized=False)
    quantizer.preprocess_model(model=base, device_map=None)
    kind = f"is_loaded_in_{section.bits}bit"
    vars(base).update({kind: True, "is_quantized": True, "hf_quantizer": quantizer})  # as from_pretrained leaves it
