"""What is counted of a training's tensors at the events of a Trainer, and which forwards are watched."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hf_efficient.callbacks.memory import MemoryCount
from hf_efficient.recording.activations import foreign_hooks

FLEX = SimpleNamespace(_attn_implementation="flex_attention")
ON_CPU = SimpleNamespace(device=torch.device("cpu"))


class Facts:
    broken = False

    def __init__(self):
        self.memory = {}

    def state(self, topic, facts):
        self.memory = {"memory": facts}[topic]

    def bytes(self, of="bytes"):
        return {one["name"]: one[of] for one in self.memory["categories"]}

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
        "memory of the gradients": "no parameter holds one when the optimizer steps: DeepSpeed has taken them, "
        "or the backward steps",
        "memory of the optimizer's state": (
            "the optimizer that the Trainer holds keeps none: it steps inside the backward, or elsewhere"
        ),
    }


def test_a_reference_model_is_counted_with_the_weights_and_what_it_shares_once(facts):
    model, reference = trained(), trained()
    reference.bias = model.bias
    MemoryCount(facts, lambda: reference).begin(ON_CPU, model)
    assert facts.bytes() == {"weights": 64 + 48}
    assert facts.bytes("note") == {"weights": "when training begins, with the reference model or the teacher"}


@pytest.mark.parametrize(
    ("prepare", "told"),
    [
        (lambda model: {"torch_compile": True}, "the model is compiled"),
        (lambda model: model.compile(backend="eager"), "the model is compiled"),
        (lambda model: {"wrapped": torch.compile(model, backend="eager")}, "the model is compiled"),
        (lambda model: {"wrapped": nn.DataParallel(model)}, "DataParallel runs the forward in threads"),
        (lambda model: {"activation_offloading": True}, "activations go elsewhere"),
        (lambda model: setattr(model, "config", FLEX), "flex attention is compiled"),
    ],
)
def test_forwards_that_are_left_alone(facts, prepare, told):
    model, count = nn.Linear(3, 4), MemoryCount(facts)
    batch = {"input_ids": torch.ones(1, 3)}
    count.begin(ON_CPU, model)
    changes = {"torch_compile": False, "wrapped": model, **(prepare(model) or {})}
    wrapped, args = changes.pop("wrapped"), SimpleNamespace(device=ON_CPU.device, **changes)
    assert count.wants(model, batch)
    _, hooks = count.run(lambda: (model(torch.ones(1, 3)).sum(), foreign_hooks()), args, wrapped, model, batch)
    assert not hooks
    assert facts.missing()["memory of activations and logits"].startswith(told)
    assert not count.wants(model, {"input_ids": torch.ones(1, 100)})
