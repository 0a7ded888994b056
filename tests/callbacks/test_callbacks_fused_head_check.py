"""A fused head that computes other logits than its model is caught before the first step."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM
from trl.trainer import add_fused_lm_head

from hf_efficient.callbacks.checks import FusedHeadCheck, head_error
from hf_efficient.errors import TrainingCheckError


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def model(request, tiny_llama_dir):
    model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=request.param)
    with torch.no_grad():
        model.lm_head.weight.mul_(30)
    add_fused_lm_head(model)
    return model.train()


def check(model):
    FusedHeadCheck().on_train_begin(None, None, None, model=model)


def test_a_head_that_computes_the_same_passes(model):
    assert head_error(model) < (1e-5 if model.dtype == torch.float32 else 0.02)
    check(model)
    assert model.training


@pytest.mark.parametrize("scale", [0.5, 1.5])
def test_a_model_that_scales_its_logits_otherwise_is_named(model, scale):
    """As a family would that TRL does not know."""
    model.lm_head.register_forward_hook(lambda module, args, output: scale * output)
    with pytest.raises(TrainingCheckError, match=r"chunked_nll does not compute the logits of llama as the model does"):
        check(model)


def test_a_head_of_zeros_is_no_fault(model):
    with torch.no_grad():
        model.lm_head.weight.zero_()
    check(model)
