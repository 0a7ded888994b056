"""Which forwards are watched."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hf_efficient.callbacks import memory as activations
from hf_efficient.callbacks.memory import ActivationProbe, MemoryCount
from hf_efficient.recording.activations import foreign_hooks


class Facts:
    def __init__(self):
        self.memory = {"categories": [], "missing": []}

    def state(self, topic, facts):
        self.memory = facts


def args(**changes):
    return SimpleNamespace(**{"device": torch.device("cpu"), "torch_compile": False, **changes})


@pytest.fixture
def facts():
    return Facts()


@pytest.fixture
def memory(facts):
    return MemoryCount(facts)


@pytest.fixture
def model():
    return nn.Linear(3, 4)


def batch(positions):
    return {"input_ids": torch.ones(1, positions)}


def run(probe, model, inputs, wrapped=None, **changes):
    """The forward of a micro-batch of ``inputs``; what it saved in the end."""

    def forward():
        return model(torch.ones(len(inputs), 3)).sum(), foreign_hooks()

    assert probe.wants(model, inputs)
    return probe.run(forward, args(**changes), model if wrapped is None else wrapped, model, inputs)


def test_the_first_is_watched_and_later_ones_that_are_clearly_larger(memory, model):
    probe = ActivationProbe(memory)
    assert not probe.wants(model, batch(100))  # nothing has begun
    memory.begin(args(), model)
    assert run(probe, model, batch(100))[1]
    assert [probe.wants(model, batch(positions)) for positions in (100, 125, 126)] == [False, False, True]
    run(probe, model, batch(126))
    assert not probe.wants(model, batch(157))
    assert not probe.wants(model.eval(), batch(1000))
    memory.begin(args(), model.train())
    assert probe.wants(model, batch(1))  # another training


def test_a_batch_that_tells_no_positions_is_watched_once(memory, model, facts):
    probe = ActivationProbe(memory)
    memory.begin(args(), model)
    run(probe, model, {"pixels": torch.ones(2)})
    assert not probe.wants(model, batch(10**9))
    assert [one["note"] for one in facts.memory["categories"][1:]] == ["kept for the backward of one micro-batch"]


def refused(probe, facts):
    assert probe._off
    ((why),) = [one["why"] for one in facts.memory["missing"] if one["what"] == "memory of activations and logits"]
    return why


@pytest.mark.parametrize(
    ("prepare", "told"),
    [
        (lambda model: {"torch_compile": True}, "the model is compiled"),
        (lambda model: model.compile(backend="eager"), "the model is compiled"),
        (lambda model: {"wrapped": torch.compile(model, backend="eager")}, "the model is compiled"),
        (lambda model: {"wrapped": nn.DataParallel(model)}, "DataParallel runs the forward in threads"),
        (lambda model: {"activation_offloading": True}, "activations go elsewhere"),
        (
            lambda model: setattr(model, "config", SimpleNamespace(_attn_implementation="flex_attention")),
            "flex attention is compiled",
        ),
    ],
)
def test_forwards_that_are_left_alone(memory, model, facts, prepare, told):
    probe = ActivationProbe(memory)
    memory.begin(args(), model)
    _, hooks = run(probe, model, batch(3), **(prepare(model) or {}))
    assert not hooks
    assert refused(probe, facts).startswith(told)
    assert not probe.wants(model, batch(100))


@pytest.mark.parametrize("kind", ["DEEPSPEED", "MEGATRON_LM"])
def test_where_weights_are_swapped(memory, model, facts, monkeypatch, kind):
    monkeypatch.setattr(activations, "distributed_type", lambda: kind)
    probe = ActivationProbe(memory)
    memory.begin(args(), model)
    assert not run(probe, model, batch(3))[1]
    assert refused(probe, facts).startswith("DeepSpeed and Megatron-LM swap the weights")


def test_hooks_of_somebody_else_stay_in_force(memory, model, facts):
    probe = ActivationProbe(memory)
    memory.begin(args(), model)
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x.detach()), lambda x: x):
        run(probe, model, batch(3))
    assert len(packed) == 1
    assert refused(probe, facts).startswith("activations go elsewhere")


def test_the_batch_and_the_random_numbers_of_a_forward_that_is_run_again(memory, model):
    probe = ActivationProbe(memory)
    memory.begin(args(), model)
    inputs, drawn = batch(3), []

    def forward():
        inputs.pop("input_ids")
        inputs["more"] = 1
        drawn.append(torch.rand(1).item())
        torch.func.grad(lambda x: x.sum())(torch.ones(1))
        return "loss"

    assert probe.run(forward, args(), model, model, inputs) == "loss"
    assert len(drawn) == 2
    assert drawn[0] == drawn[1]
    assert not foreign_hooks()
