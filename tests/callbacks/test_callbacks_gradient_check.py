from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import DistributedType
from torch import nn

from hf_efficient.callbacks.checks import GradientCheck, parameters_without_gradient
from hf_efficient.errors import TrainingCheckError

ARGS = SimpleNamespace(torch_compile=False, optim="adamw_torch")


def hooked(model):
    return [name for name, module in model.named_modules() if module._forward_hooks]


def half_frozen():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU(), nn.Embedding(3, 2))
    model[1].requires_grad_(False)
    model[3].weight.requires_grad_(False)
    return model


def test_names_of_parameters_without_gradient():
    model = half_frozen()
    assert parameters_without_gradient(model) == ["0.weight", "0.bias"]
    model[0](torch.ones(1, 2)).sum().backward()
    assert parameters_without_gradient(model) == []


def test_frozen_leaves_are_watched_during_the_first_step_only():
    model, check = half_frozen(), GradientCheck()
    check.on_step_begin(ARGS, None, None, model=model)
    assert hooked(model) == []
    check.on_train_begin(ARGS, None, None)
    check.on_step_begin(ARGS, None, None, model=model)
    check.on_step_begin(ARGS, None, None, model=model)
    assert hooked(model) == ["", "1", "3"]
    assert [len(module._forward_hooks) for module in (model, model[1], model[3])] == [1, 1, 1]
    with pytest.raises(TrainingCheckError, match=r"^2 trainable parameters got no gradient .* 0\.weight, 0\.bias\. "):
        check.on_pre_optimizer_step(ARGS, None, None, model=model)
    assert hooked(model) == []
    check.on_step_begin(ARGS, None, None, model=model)
    check.on_pre_optimizer_step(ARGS, None, None, model=model)
    assert hooked(model) == []


def test_hooks_of_a_run_that_failed_are_gone_when_the_next_begins_or_this_one_ends():
    first, second, check = half_frozen(), half_frozen(), GradientCheck()
    for model, end in ((first, check.on_train_begin), (second, check.on_train_end)):
        check.on_train_begin(ARGS, None, None)
        check.on_step_begin(ARGS, None, None, model=model)
        assert hooked(model) == ["", "1", "3"]
        end(ARGS, None, None)
        assert hooked(model) == []


def test_compiled_models_are_not_watched():
    model, check = half_frozen(), GradientCheck()
    check.on_train_begin(ARGS, None, None)
    check.on_step_begin(SimpleNamespace(torch_compile=True), None, None, model=model)
    assert hooked(model) == []


@pytest.mark.parametrize(
    ("optimizer", "distributed", "reason"),
    [
        ("adamw_torch", "MULTI_CPU", None),
        ("adalomo", "NO", "adalomo"),
        ("galore_adamw_layerwise", "NO", "galore_adamw_layerwise"),
        ("adamw_torch", "DEEPSPEED", "DEEPSPEED"),
        ("adamw_torch", "FSDP", "FSDP"),
    ],
)
def test_gradients_that_are_not_on_the_parameters_are_left_out(monkeypatch, caplog, optimizer, distributed, reason):
    state = SimpleNamespace(distributed_type=DistributedType(distributed))
    monkeypatch.setattr("accelerate.state.AcceleratorState", lambda: state)
    monkeypatch.setattr("accelerate.state.is_initialized", lambda: True)
    model, check = half_frozen(), GradientCheck()
    args = SimpleNamespace(torch_compile=False, optim=optimizer)
    check.on_train_begin(args, None, None)
    with caplog.at_level(logging.DEBUG, logger="hf_efficient"):
        if reason is None:
            with pytest.raises(TrainingCheckError):
                check.on_pre_optimizer_step(args, None, None, model=model)
        else:
            check.on_pre_optimizer_step(args, None, None, model=model)
            assert caplog.messages == [f"Gradients are not checked: with {reason} they are not on the parameters."]
