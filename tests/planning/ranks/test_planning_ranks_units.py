"""How a model is cut into what is gathered at once."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_efficient.planning.simulation import unit_names, units_of


@pytest.fixture
def cut(tiny_config_of):
    def build(family):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(tiny_config_of(family))
        return model, units_of(model, {})

    return build


def test_blocks_embedding_tail_and_the_rest(cut):
    model, units = cut("llama")
    assert [unit.name for unit in units] == ["model.embed_tokens", "model.layers.0", "model.layers.1", "tail", "root"]
    assert [unit.is_layer for unit in units] == [False, True, True, False, False]
    assert [unit.stays for unit in units] == [False, False, False, True, True]
    assert [weight.name for weight in units[3].weights] == ["model.norm.weight", "lm_head.weight"]
    assert units[-1].weights == ()
    assert sum(weight.elements for unit in units for weight in unit.weights) == sum(
        one.numel() for one in model.parameters()
    )


def test_a_shared_weight_is_of_the_tail_alone(cut):
    """Its backward ends with the embedding's, which no gradient passes out of."""
    _, units = cut("qwen2")
    assert [unit.name for unit in units] == ["model.layers.0", "model.layers.1", "tail", "root"]
    assert units[2].ends_last
    assert {weight.name for weight in units[2].weights} == {"model.norm.weight", "model.embed_tokens.weight"}


def test_units_of_classes_that_a_recipe_names(cut):
    """Norms between them are the root's; embedding and tail stay what they are."""
    model, _ = cut("llama")
    units = units_of(model, {}, ["LlamaAttention", "LlamaMLP"])
    parts = [f"model.layers.{layer}.{part}" for layer in (0, 1) for part in ("self_attn", "mlp")]
    assert [unit.name for unit in units] == ["model.embed_tokens", *parts, "tail", "root"]
    norms = [
        f"model.layers.{n}.{name}.weight" for n in (0, 1) for name in ("input_layernorm", "post_attention_layernorm")
    ]
    assert [weight.name for weight in units[-1].weights] == norms
    assert [weight.name for weight in units[-2].weights] == ["model.norm.weight", "lm_head.weight"]


def test_which_unit_a_module_is_of(cut):
    _, units = cut("llama")
    names = unit_names(units, ["model.layers.1.mlp.up_proj", "model.layers.1", "lm_head", "model.rotary_emb", ""])
    assert {module: unit and unit.name for module, unit in names.items()} == {
        "model.layers.1.mlp.up_proj": "model.layers.1",
        "model.layers.1": "model.layers.1",
        "lm_head": "tail",
        "model.rotary_emb": None,
        "": None,
    }


@pytest.mark.parametrize("family", ["mistral", "qwen3", "gemma2"])
def test_other_families(cut, family):
    _, units = cut(family)
    assert [unit.name for unit in units if unit.is_layer] == ["model.layers.0", "model.layers.1"]
    assert units[-1].weights == ()
