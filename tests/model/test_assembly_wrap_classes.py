"""Classes of layers that a recipe names, against a model's own."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hf_efficient.errors import ModelError
from hf_efficient.model.adapter import add_adapter, check_wrap_classes
from hf_efficient.recipe.schema import AdapterSection


@pytest.fixture
def model(tiny_llama_dir):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tiny_llama_dir))


def test_classes_that_are_there(model):
    check_wrap_classes(model, None)
    check_wrap_classes(model, ["LlamaDecoderLayer"])
    check_wrap_classes(model, ["LlamaAttention", "LlamaMLP", "Embedding"])


def test_a_class_that_is_not(model):
    told = (
        "distributed.wrap_classes: LlamaDecoderLayr is no class of a layer of this model. Did you mean "
        "LlamaDecoderLayer? Its own: LlamaDecoderLayer, LlamaForCausalLM, LlamaModel, LlamaAttention, LlamaMLP."
    )
    with pytest.raises(ModelError) as raised:
        check_wrap_classes(model, ["LlamaMLP", "LlamaDecoderLayr"])
    assert str(raised.value) == told
    adapted = add_adapter(model, AdapterSection(), seed=0, checkpointing=False, on_meta=True)
    with pytest.raises(ModelError) as raised:  # an adapter's own modules are nothing to choose
        check_wrap_classes(adapted, ["LlamaDecoderLayr"])
    assert str(raised.value) == told
