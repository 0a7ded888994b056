"""The module that runs: in the forward by hooks, in the backward by autograd's sequence numbers."""

from __future__ import annotations

import threading
from collections import defaultdict

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from hf_efficient.simulate.tensor_log import ModuleNames


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False)

    def forward(self, hidden):
        return hidden + self.down(torch.relu(self.up(hidden)))


class Model(nn.Module):
    def __init__(self, checkpointing=None):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 3, bias=False)
        self.checkpointing = checkpointing

    def forward(self, hidden):
        for block in self.blocks:
            if self.checkpointing is None:
                hidden = block(hidden)
            else:
                hidden = checkpoint(block, hidden, use_reentrant=self.checkpointing == "reentrant")
        return self.head(hidden).exp().sum()


class Seen(TorchDispatchMode):
    """The operators of each module, apart where a forward runs."""

    def __init__(self, names):
        super().__init__()
        self.names = names
        self.by_module = defaultdict(list)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            self.by_module[(self.names.in_forward, self.names.current())].append(func.__name__.split(".")[0])
        return func(*args, **(kwargs or {}))


def products(seen, in_forward):
    """Matrix products by module."""
    return {
        module: operators.count("mm")
        for (forward, module), operators in seen.by_module.items()
        if forward == in_forward and "mm" in operators
    }


LINEARS = ["blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down", "head"]
VALUES = torch.ones(5, 4)


def test_the_forward_runs_in_the_innermost_module():
    model = Model()
    names = ModuleNames(model)
    with Seen(names) as seen:
        assert names.current() == ""
        loss = model(VALUES)
        assert (names.in_forward, names.current()) == (False, "")
    assert loss.requires_grad
    assert products(seen, in_forward=True) == dict.fromkeys(LINEARS, 1)
    assert seen.by_module[(True, "blocks.0")] == ["relu", "add"]
    assert seen.by_module[(True, "")] == ["exp", "sum"]


def test_the_backward_runs_in_the_module_whose_forward_made_its_nodes():
    model = Model()
    names = ModuleNames(model)
    for _ in range(2):  # the numbers go on from step to step
        loss = model(VALUES)
        with Seen(names) as seen:
            loss.backward()
        assert products(seen, in_forward=True) == {}
        # the first layer's input needs no gradient
        assert products(seen, in_forward=False) == {**dict.fromkeys(LINEARS, 2), "blocks.0.up": 1}
        assert "threshold_backward" in seen.by_module[(False, "blocks.1")]


@pytest.mark.parametrize("kind", ["reentrant", "other"])
def test_a_recomputation_counts_as_a_forward_and_its_backward_keeps_its_modules(kind):
    model = Model(kind)
    names = ModuleNames(model)
    values = VALUES.clone().requires_grad_()
    for _ in range(2):
        loss = model(values)
        with Seen(names) as seen:
            loss.backward()
        again = products(seen, in_forward=True)
        assert {module: again[module] for module in LINEARS[:1]} == {"blocks.0.up": 1}
        assert set(again) <= set(LINEARS[:-1])
        assert products(seen, in_forward=False) == dict.fromkeys(LINEARS, 2)


def test_a_forward_in_another_thread_whose_numbers_start_again_mixes_nothing_up():
    model = Model()
    names = ModuleNames(model)
    loss = model(VALUES)
    other = threading.Thread(target=model, args=(VALUES,))
    other.start()
    other.join()
    with Seen(names) as seen:
        loss.backward()
    assert products(seen, in_forward=False) == {**dict.fromkeys(LINEARS, 2), "blocks.0.up": 1}


def test_an_exception_leaves_the_module():
    model = Model()
    names = ModuleNames(model)
    with pytest.raises(RuntimeError):
        model(torch.ones(5, 3))
    assert (names.in_forward, names.current()) == (False, "")


def test_closed_it_leaves_no_hooks():
    model = Model()
    names = ModuleNames(model)
    assert all(module._forward_hooks and module._forward_pre_hooks for module in model.modules())
    names.close()
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._forward_hooks_always_called
