"""How a live model computes: its attention, and what it computes twice."""

from __future__ import annotations

import functools

import pytest
from live_models import adapted, live
from torch.utils.checkpoint import checkpoint
from trl.models import enable_selective_activation_checkpointing

from hf_efficient.errors import ModelError
from hf_efficient.model.work import checkpointing_of, kernel_of


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("eager", "square"),
        ("sdpa", "sdpa"),
        ("flash_attention_2", "documents"),
        ("flash_attention_3", "documents"),
        ("kernels-community/flash-attn2", "documents"),
        ("flex_attention", "documents"),
    ],
)
def test_the_attention_kernel(name, kernel):
    model = adapted(live())
    model.config._attn_implementation = name
    assert kernel_of(model, "cuda") == kernel_of(model, "cpu") == kernel


def test_sdpa_with_dropout_on_a_cpu_is_no_fused_kernel():
    model = live(attention_dropout=0.1)
    model.config._attn_implementation = "sdpa"
    assert (kernel_of(model, "cpu"), kernel_of(model, "cuda")) == ("square", "sdpa")


def test_another_attention_is_not_guessed_at():
    model = live()
    model.config._attn_implementation = "my_attention"
    with pytest.raises(ModelError, match=r"^attention implementation 'my_attention': which pairs it computes"):
        kernel_of(model, "cpu")


def checkpointed(**options):
    model = live(num_hidden_layers=3)
    model.activation_checkpointing_enable(**options)
    return model


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, ("non_reentrant", None)),
        ({"activation_checkpointing_kwargs": {"use_reentrant": True}}, ("reentrant", None)),
        ({"every_n_layers": 2}, ("non_reentrant", frozenset({0, 2}))),
    ],
)
def test_the_way_of_checkpointing(options, found):
    assert checkpointing_of(checkpointed(**options)) == found
    assert checkpointing_of(adapted(checkpointed(**options))) == found


def test_no_checkpointing():
    assert checkpointing_of(live()) == ("none", None)
    model = checkpointed()
    model.activation_checkpointing_disable()
    assert checkpointing_of(model) == ("none", None)


def selective():
    model = live()
    enable_selective_activation_checkpointing(model)
    model.gradient_checkpointing_enable()
    return model


def own_function():
    model = checkpointed()
    for layer in model.model.layers:
        layer._gradient_checkpointing_func = checkpoint
    return model


def mixed():
    model = checkpointed()
    model.model.layers[1]._gradient_checkpointing_func = functools.partial(checkpoint, use_reentrant=True)
    return model


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (selective, "the selective way"),
        (own_function, "a function of its own"),
        (mixed, "in different ways"),
        (lambda: checkpointed(activation_checkpointing_kwargs={"preserve_rng_state": True}), "use_reentrant"),
    ],
)
def test_what_is_computed_again_is_not_guessed_at(build, told):
    with pytest.raises(ModelError, match=told):
        checkpointing_of(build())
