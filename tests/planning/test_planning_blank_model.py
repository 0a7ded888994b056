"""The model without values is the model that a run really builds: every tensor of it, by name."""

from __future__ import annotations

import pytest
import torch

from hf_efficient.errors import ModelError, SetupError
from hf_efficient.model.adapter import add_adapter
from hf_efficient.model.load import load_base
from hf_efficient.planning.blank_model import blank_model, quantization_constants
from hf_efficient.planning.model_config import model_config
from hf_efficient.simulate.blank import Blank

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2")
METHODS = {
    "full": {"method": "full"},
    "lora": {"method": "lora"},
    "dora": {"method": "lora", "dora": True, "dropout": 0.1},
    "qlora": {"method": "qlora"},
    "qlora of a DoRA": {"method": "qlora", "dora": True},
    "qlora without double quantization": {
        "method": "qlora",
        "quantization": {"double_quant": False, "type": "fp4", "compute_dtype": "float32"},
    },
    "some modules": {"method": "lora", "target_modules": ["q_proj", "v_proj"], "modules_to_save": ["embed_tokens"]},
    "a head to save": {"method": "qlora", "modules_to_save": ["lm_head"]},
    "biases": {"method": "lora", "bias": "all"},
}


def real_and_blank(recipe, *, checkpointing=False):
    real = add_adapter(load_base(recipe), recipe.adapter, seed=1, checkpointing=checkpointing)
    config = model_config(recipe.model)
    return real, blank_model(recipe, config, seed=1, checkpointing=checkpointing)


def tensors(model):
    """Shape, strides, dtype and whether it is trained, of everything that the model holds."""
    held = {name: (one, one.requires_grad) for name, one in model.named_parameters()}
    held |= {name: (one, None) for name, one in model.named_buffers()}
    for name, module in model.named_modules():
        held |= {f"{name}.constant{place}": (one, None) for place, one in enumerate(quantization_constants(module))}
    return {name: (tuple(one.shape), one.stride(), one.dtype, trained) for name, (one, trained) in held.items()}


def modules(model):
    return {name: type(module).__name__ for name, module in model.named_modules()}


EVERYWHERE = ("full", "lora", "dora", "qlora")
CASES = [(family, method) for family in FAMILIES for method in METHODS if method in EVERYWHERE or family == "qwen2"]
"""Qwen2 has biases and a tied head."""


@pytest.mark.parametrize(("family", "method"), CASES)
def test_every_tensor_is_that_of_the_real_model(family, method, recipe, saved):
    real, simulated = real_and_blank(recipe(saved(family), **METHODS[method]))
    assert tensors(simulated) == tensors(real)
    assert modules(simulated) == modules(real)
    assert all(isinstance(one, Blank) for one in simulated.parameters())


@pytest.mark.parametrize("dtype", ["auto", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("method", ["full", "qlora"])
def test_the_dtype_is_that_of_the_recipe_or_of_the_checkpoint(dtype, method, recipe, saved):
    real, simulated = real_and_blank(recipe(saved("llama"), method=method, dtype=dtype))
    assert tensors(simulated) == tensors(real)
    expected = torch.bfloat16 if dtype == "auto" else getattr(torch, dtype)
    assert simulated.get_input_embeddings().weight.dtype == expected


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_attention_is_that_of_the_recipe(attention, recipe, saved):
    real, simulated = real_and_blank(recipe(saved("llama"), attention=attention))
    assert simulated.config._attn_implementation == real.config._attn_implementation == attention


def test_with_checkpointing_the_embedding_requires_a_gradient(recipe, saved):
    for checkpointing in (False, True):
        _, simulated = real_and_blank(recipe(saved("llama")), checkpointing=checkpointing)
        assert simulated.get_input_embeddings()(torch.tensor([[1]])).requires_grad is checkpointing


def test_tied_weights_stay_tied(recipe, saved):
    _, simulated = real_and_blank(recipe(saved("qwen2"), method="full"))
    assert simulated.get_input_embeddings().weight is simulated.get_output_embeddings().weight


def test_an_attention_that_is_not_there_is_an_error(recipe, saved):
    wanted = recipe(saved("llama"), attention="no_such_attention")
    with pytest.raises((ModelError, SetupError), match=r"^model"):
        blank_model(wanted, model_config(wanted.model), seed=0, checkpointing=False)


def test_target_modules_that_are_not_there_are_named(recipe, saved):
    wanted = recipe(saved("llama"), target_modules=["nothing"])
    with pytest.raises(ModelError, match=r"adapter\.target_modules: \['nothing'\]"):
        blank_model(wanted, model_config(wanted.model), seed=0, checkpointing=False)
