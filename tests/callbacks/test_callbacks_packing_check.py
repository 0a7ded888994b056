"""Packed examples are kept apart by the implementations that ship; one that mixes them is caught."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from hf_efficient.callbacks.checks import PackingCheck, mixing_ratio
from hf_efficient.errors import TrainingCheckError


@pytest.fixture
def mixing_attention():
    """An attention that ignores the mask it is given and is causal over the whole row."""
    name = "ignores_packing"

    def attend(module, query, key, value, attention_mask, **kwargs):
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        value = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        output = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return output.transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS.register(name, attend)
    yield name
    del AttentionInterface._global_mapping[name]


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_shipped_implementations_keep_examples_apart(tiny_llama_dir, implementation):
    model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir, attn_implementation=implementation)
    model.train()
    assert mixing_ratio(model) < 1e-4
    assert model.training


def test_a_mixing_attention_is_named(tiny_llama_dir, mixing_attention):
    model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir, attn_implementation=mixing_attention)
    with pytest.raises(TrainingCheckError, match="'ignores_packing' packed examples read each other"):
        PackingCheck().on_train_begin(None, None, None, model=model)
