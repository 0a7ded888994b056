"""Which module an allocator is told of, in the forward, the backward and the optimizer's step."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hf_efficient.profilers.memory_history import ModuleLabels, is_compiled


class Seen(torch.autograd.Function):
    """An operator that notes what is told while it runs: where an allocation of it would be booked."""

    @staticmethod
    def forward(ctx, tensor, notes, name):
        ctx.notes, ctx.name = notes, name
        notes.see(f"{name} forward")
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.notes.see(f"{ctx.name} backward")
        return gradient.clone(), None, None


class Notes:
    """In place of the allocator."""

    def __init__(self):
        self.label, self.seen = "", []

    def tell(self, label):
        self.label = label

    def see(self, what):
        self.seen.append((what, self.label))


class Part(nn.Module):
    def __init__(self, notes, name):
        super().__init__()
        self.notes, self.name = notes, name
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, tensor):
        return Seen.apply(tensor * self.weight, self.notes, self.name)


class Layer(nn.Module):
    """Its own operator lies between two parts."""

    def __init__(self, notes):
        super().__init__()
        self.notes = notes
        self.first, self.second = Part(notes, "first"), Part(notes, "second")

    def forward(self, tensor):
        return self.second(Seen.apply(self.first(tensor), self.notes, "own"))


class Model(nn.Module):
    def __init__(self, notes, checkpointed=None):
        super().__init__()
        self.notes, self.checkpointed = notes, checkpointed
        self.layers = nn.ModuleList([Layer(notes), Layer(notes)])

    def forward(self, tensor):
        for layer in self.layers:
            if self.checkpointed is None:
                tensor = layer(tensor)
            else:
                tensor = checkpoint(layer, tensor, use_reentrant=self.checkpointed)
        return {"loss": tensor.sum(), "kept": [tensor]}


@pytest.fixture
def notes():
    return Notes()


def of_layer(number, way, suffix=""):
    at = f"layers.{number}"
    found = [
        (f"first {way}", f"{at}.first{suffix}"),
        (f"own {way}", f"{at}{suffix}"),
        (f"second {way}", f"{at}.second{suffix}"),
    ]
    return found if way == "forward" else found[::-1]


def train(model, labels=None):
    given = torch.ones(3, requires_grad=True)
    model(given)["loss"].backward()
    if labels is not None:
        labels.close()
    return [given.grad, *(one.grad for one in model.parameters())]


def test_forward_and_backward(notes):
    model = Model(notes)
    train(model, ModuleLabels(model, notes.tell))
    assert notes.seen[:6] == of_layer(0, "forward") + of_layer(1, "forward")
    assert notes.seen[6:] == of_layer(1, "backward", " (backward)") + of_layer(0, "backward", " (backward)")
    assert notes.label == ""


def test_a_forward_again_in_the_backward_counts_as_itself(notes):
    model = Model(notes, checkpointed=True)
    train(model, ModuleLabels(model, notes.tell))
    assert notes.seen[6:] == [
        *of_layer(1, "forward"),
        *of_layer(1, "backward", " (backward)"),
        *of_layer(0, "forward"),
        *of_layer(0, "backward", " (backward)"),
    ]


def test_a_forward_again_for_a_saved_tensor_stops_at_the_last_one_and_the_backward_goes_on(notes):
    model = Model(notes, checkpointed=False)
    train(model, ModuleLabels(model, notes.tell))
    # The product in `second` needs what it saved: the forward runs again up to there, inside the backward of `second`.
    for number, seen in ((1, notes.seen[6:11]), (0, notes.seen[11:])):
        first, own, second = of_layer(number, "backward", " (backward)")[::-1]
        assert seen == [second, *of_layer(number, "forward")[:2], own, first]


def test_the_gradients_are_the_same_bits(notes):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(inplace=True), nn.LayerNorm(8), nn.Linear(8, 1))
    given = torch.randn(5, 3)

    def gradients():
        model.zero_grad()
        model(given).sum().backward()
        return [one.grad.clone() for one in model.parameters()]

    plain = gradients()
    labels = ModuleLabels(model, notes.tell)
    named = gradients()
    labels.close()
    assert all(torch.equal(one, other) for one, other in zip(plain, named, strict=True))
    assert labels.calls > 0
    assert labels.seconds > 0


def test_the_step_of_the_optimizer(notes):
    model = Model(notes)
    labels = ModuleLabels(model, notes.tell)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(3))["loss"].backward()

    def closure():
        notes.see("step")
        return torch.tensor(0.0)

    optimizer.step(closure)
    assert notes.seen[-1] == ("step", "optimizer step")
    assert notes.label == ""
    labels.close()
    optimizer.step(closure)
    assert notes.seen[-1] == ("step", "")


def test_nothing_is_left_behind(notes):
    model = Model(notes)
    ModuleLabels(model, notes.tell).close()
    train(model)
    assert {label for _, label in notes.seen} == {""}
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_forward_that_fails_leaves_no_name(notes):
    model = Model(notes)
    labels = ModuleLabels(model, notes.tell)
    with pytest.raises(RuntimeError):
        model(torch.ones(2))
    assert notes.label == ""
    train(model, labels)
    assert notes.seen[:6] == of_layer(0, "forward") + of_layer(1, "forward")


def test_the_names_are_those_of_the_model_inside_an_adapter(notes):
    class Peft(nn.Module):
        def __init__(self):
            super().__init__()
            self.base_model = nn.Module()
            self.base_model.model = Part(notes, "part")

        def forward(self, tensor):
            return Seen.apply(self.base_model.model(tensor), notes, "around")

    model = Peft()
    model.base_model.model.down_proj = Part(notes, "down")
    names = []
    labels = ModuleLabels(model, names.append)
    model(torch.ones(3))
    model.base_model.model.down_proj(torch.ones(3))
    labels.close()
    assert "down_proj" in names
    assert notes.seen[1] == ("around forward", "")
    assert names[0] == "Peft"


def test_a_compiled_part_is_seen():
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    assert not is_compiled(model)
    model[0].compile()
    assert is_compiled(model)
