"""Snapshots of the allocator, with one in place of CUDA's, and which module its allocations are booked to."""

import json
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hf_efficient.profilers.instrument import Place
from hf_efficient.profilers.memory_history import CudaAllocator, MemoryHistory, ModuleLabels

BLOCKS = [
    {"address": 0, "size": 64, "requested_size": 60, "state": "active_allocated", "frames": []},
    {"address": 64, "size": 32, "state": "inactive"},
]
SEGMENT = {"address": 0, "total_size": 96, "active_size": 64, "blocks": BLOCKS}
SNAPSHOT = {"segments": [SEGMENT], "device_traces": [[]]}


class Fake(CudaAllocator):
    def __init__(self, fails=False, labels=None):
        self.calls, self.observers, self.fails = [], [], fails
        self.record = self.calls.append
        self.when_out_of_memory = self.observers.append
        self.labels, self.labeller = labels, lambda: None if labels is None else labels.append

    is_here = staticmethod(lambda: True)
    retries = staticmethod(lambda: 2)
    device = staticmethod(lambda: 0)

    def stop(self):
        self.calls.append("stop")

    def snapshot(self):
        if self.fails:
            raise RuntimeError("no host memory")
        return SNAPSHOT


def train(history, folder, steps=3):
    history.files = []
    history.start(Place(folder, 1))
    for step in range(1, steps + 1):
        history.step_ends(step)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_after_chosen_steps_and_at_the_end(tmp_path):
    fake = Fake()
    history = MemoryHistory(at_steps=[2], at_end=True, max_entries=50, allocator=fake)
    train(history, tmp_path)
    assert names(tmp_path) == ["memory.rank1.step2.json", "memory.rank1.step2.pickle"]
    history.stop()
    assert names(tmp_path)[:2] == ["memory.rank1.end.json", "memory.rank1.end.pickle"]
    assert len(history.files) == 4
    assert fake.calls == [50, "stop"]
    assert pickle.loads((tmp_path / "memory.rank1.step2.pickle").read_bytes()) == SNAPSHOT
    told = json.loads((tmp_path / "memory.rank1.step2.json").read_text())
    assert (told["moment"], told["reserved_bytes"], told["peak_bytes"]) == ("after step 2", 96, 60)
    assert told["allocation_retries"] == 2


def test_when_memory_runs_out(tmp_path):
    fake = Fake()
    history = MemoryHistory(allocator=fake)
    train(history, tmp_path)
    (ran_out,) = fake.observers
    ran_out()
    assert names(tmp_path) == ["memory.rank1.out_of_memory.json", "memory.rank1.out_of_memory.pickle"]
    history.stop()
    train(history, tmp_path)
    assert len(fake.observers) == 1  # torch cannot take one back: there is one for all trainings


def test_allocations_are_labelled_by_their_module_until_it_stops(tmp_path):
    fake, model = Fake(labels=[]), nn.Sequential(nn.Linear(2, 2))
    history = MemoryHistory(allocator=fake)
    history.start(Place(tmp_path, 0, None, model))
    model(torch.ones(1, 2))
    assert fake.labels == ["Sequential", "0", "Sequential", ""]
    history.stop()
    assert fake.labels == ["Sequential", "0", "Sequential", "", ""]
    model(torch.ones(1, 2))
    assert len(fake.labels) == 5
    (note,) = history.notes
    assert note.startswith("naming the modules took ")
    assert note.endswith(" of the host's time in 4 calls, which its cost leaves out")


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


def run(notes, checkpointed=None):
    """What a training's forward and backward notes under the labels."""
    model = Model(notes, checkpointed)
    labels = ModuleLabels(model, notes.tell)
    model(torch.ones(3, requires_grad=True))["loss"].backward()
    labels.close()
    return notes.seen


def test_forward_and_backward(notes):
    run(notes)
    assert notes.seen[:6] == of_layer(0, "forward") + of_layer(1, "forward")
    assert notes.seen[6:] == of_layer(1, "backward", " (backward)") + of_layer(0, "backward", " (backward)")
    assert notes.label == ""


def test_a_forward_again_in_the_backward_counts_as_itself(notes):
    assert run(notes, checkpointed=True)[6:] == [
        *of_layer(1, "forward"),
        *of_layer(1, "backward", " (backward)"),
        *of_layer(0, "forward"),
        *of_layer(0, "backward", " (backward)"),
    ]


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
