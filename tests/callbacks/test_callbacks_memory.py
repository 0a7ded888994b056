"""What is counted and told of a training's tensors, at the events of a Trainer that there is none of."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hf_efficient.callbacks.memory import MemoryCount

ON_CPU = SimpleNamespace(device=torch.device("cpu"))


class Facts:
    def __init__(self):
        self.memory = {}

    def state(self, topic, facts):
        assert topic == "memory"
        self.memory = facts

    def bytes(self):
        return {one["name"]: one["bytes"] for one in self.memory["categories"]}

    def notes(self):
        return {one["name"]: one["note"] for one in self.memory["categories"]}

    def missing(self):
        return {one["what"]: one["why"] for one in self.memory["missing"]}


@pytest.fixture
def facts():
    return Facts()


def trained(bias=True):
    """A layer of 4 x 3 with gradients."""
    model = nn.Linear(3, 4, bias=bias)
    model(torch.ones(2, 3)).sum().backward()
    return model


def test_the_events_of_a_training(facts):
    model, count = trained(), MemoryCount(facts)
    count.before_step(model)
    assert facts.memory == {}  # nothing has begun
    count.begin(ON_CPU, model)
    assert facts.memory["device"] == "cpu"
    assert facts.bytes() == {"weights": 64}
    count.before_step(model)
    assert facts.bytes() == {"weights": 64, "gradients": 64}
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    optimizer.step_was_skipped = True
    count.after_step(model, optimizer)
    assert "optimizer_state" not in facts.bytes()
    optimizer.step_was_skipped = False
    optimizer.step()
    count.after_step(model, optimizer)
    assert facts.bytes() == {"weights": 64, "gradients": 64, "optimizer_state": 64}
    model.weight.grad = None
    count.before_step(model)  # once is enough
    assert facts.bytes()["gradients"] == 64
    count.begin(ON_CPU, model)
    assert facts.bytes() == {"weights": 64}


def test_the_optimizers_own_copies_of_the_weights_are_its_state(facts):
    model, count = trained(bias=False).to(torch.bfloat16), MemoryCount(facts)
    count.begin(ON_CPU, model)
    count.before_step(model)
    copies = model.weight.detach().float()
    count.after_step(model, SimpleNamespace(state={}, param_groups=[{"params": [copies, model.weight]}]))
    assert facts.bytes() == {"weights": 24, "gradients": 24, "optimizer_state": 48}


def test_gradients_that_are_not_on_the_parameters(facts):
    model, count = nn.Linear(3, 4), MemoryCount(facts)
    count.begin(ON_CPU, model)
    count.before_step(model)
    count.after_step(model, SimpleNamespace(state={}, param_groups=[]))
    assert facts.bytes() == {"weights": 64}
    assert facts.missing() == {
        "memory of the gradients": "no parameter holds one when the optimizer steps",
        "memory of the optimizer's state": (
            "the optimizer that the Trainer holds keeps none: it steps inside the backward, or elsewhere"
        ),
    }


def test_gradients_that_zero_takes_are_counted_while_they_are_made(facts):
    model, count = nn.Linear(3, 4), MemoryCount(facts)
    zero = SimpleNamespace(optimizer=SimpleNamespace(averaged_gradients={}))
    count.begin(ON_CPU, model, zero)
    model(torch.ones(2, 3)).sum().backward()
    model.zero_grad(set_to_none=True)  # as ZeRO does before the Trainer tells of the step
    count.before_step(model)
    assert facts.bytes() == {"weights": 64, "gradients": 64}
    assert facts.notes()["gradients"] == "at most in the first step, as DeepSpeed takes them"
    assert facts.missing() == {}
    assert model.weight._backward_hooks == {}
    count.begin(ON_CPU, model, zero)
    count.begin(ON_CPU, model, zero)  # a training that never stepped leaves no hook
    assert len(model.weight._backward_hooks) == 1


def test_a_reference_model_is_counted_with_the_weights_and_what_it_shares_once(facts):
    model, reference = trained(), trained()
    reference.bias = model.bias
    MemoryCount(facts, lambda: reference).begin(ON_CPU, model)
    assert facts.bytes() == {"weights": 64 + 48}
    assert facts.notes() == {"weights": "when training begins, with the reference model"}


def test_an_adapters_trained_parameters_are_apart_from_its_base(facts):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    model.peft_config = {"default": None}
    MemoryCount(facts).begin(ON_CPU, model)
    assert facts.bytes() == {"weights": 64, "adapter": 40}


def test_what_lies_on_another_device_is_told_apart(facts):
    count = MemoryCount(facts)
    count.begin(SimpleNamespace(device=torch.device("cuda")), trained())
    assert facts.memory["device"] == "cuda:0"
    assert facts.bytes() == {"weights": 0}
    assert facts.notes() == {"weights": "when training begins; 64 B more on cpu"}


def test_a_fault_is_one_warning_and_the_end_of_it(facts, caplog):
    count = MemoryCount(facts, lambda: 1 / 0)
    model = trained()
    count.begin(ON_CPU, model)
    count.before_step(model)
    assert [record.getMessage() for record in caplog.records] == [
        "Memory is no longer told by category, because of a fault; training goes on."
    ]
    assert not count.active
    assert facts.memory == {}
