"""Whether a gradient can pass, and gradients that an engine takes from the parameters while they are made."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hf_efficient.callbacks.checks import passes_gradient
from hf_efficient.callbacks.memory import engine_gradients, occupied_bytes


def grown(shape=(2,)):
    """A tensor in the middle of a graph."""
    return torch.ones(shape, requires_grad=True) * 2


def test_a_differentiable_path_passes():
    leaf, middle = torch.ones(2, requires_grad=True), grown()
    assert passes_gradient([leaf], [(leaf * 3).sin()])
    assert passes_gradient([middle], [(middle * 3).sin()])
    assert passes_gradient([leaf], [leaf])
    assert passes_gradient([middle], [middle])
    assert passes_gradient([grown(), middle], [torch.zeros(2), middle + 1])


def test_a_leaf_that_saved_tensor_hooks_handed_back_is_the_same_leaf():
    """A checkpointed layer computes again from what the hooks around it give: other tensors on the same memory."""
    leaf = torch.ones(2, requires_grad=True)
    found = []

    def layer(hidden):
        output = hidden * 3
        found.append(passes_gradient([hidden], [output]))
        return output.sin()

    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.detach(), lambda x: x):
        output = checkpoint(layer, leaf, use_reentrant=False)
    output.sum().backward()
    assert found == [True, True]
    other = torch.ones(2, requires_grad=True)
    assert not passes_gradient([other], [leaf * 3])


def test_an_operator_without_a_derivative_does_not_pass_although_its_output_requires_grad():
    library = torch.library.Library("hf_efficient_tests", "DEF")  # lives as long as the test
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x.detach() * 2, "CPU")
    middle = grown()
    output = torch.ops.hf_efficient_tests.twice(middle)
    assert not passes_gradient([middle], [output])
    assert not passes_gradient([middle], [output.to(torch.float64) + 1])


def test_what_lies_on_top_of_one_another_counts_once():
    whole, other = torch.zeros(10), torch.zeros(3, dtype=torch.float64)
    assert occupied_bytes([whole[:5], whole[3:9]]) == {"cpu": 9 * 4}
    assert occupied_bytes([whole[:2], whole[4:6], other, whole[:2]]) == {"cpu": 4 * 4 + 3 * 8}
    assert occupied_bytes([whole[:9], whole[2:4], whole[5:]]) == {"cpu": 10 * 4}
    assert occupied_bytes([torch.empty(0)]) == {}


def taken_after(model, optimizer, engine):
    """Run a backward under an engine that takes each gradient as soon as it is there."""
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(engine)
    counted = engine_gradients(model, SimpleNamespace(optimizer=optimizer))
    model(torch.ones(2, 8)).sum().backward()
    counted.remove()
    return counted


def two_layers():
    """Weights of 8 x 8 and 4 x 8: 256 and 128 bytes."""
    return nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 4, bias=False))


def test_an_engine_that_keeps_half_of_each_and_one_gradient_on_its_way():
    optimizer = SimpleNamespace(averaged_gradients={0: []})

    def take_half(parameter):
        optimizer.averaged_gradients[0].append(parameter.grad.flatten()[: parameter.numel() // 2].clone())
        parameter.grad = None

    counted = taken_after(two_layers(), optimizer, take_half)
    assert counted.most_bytes == {"cpu": 128 // 2 + 256}  # the last layer's comes first


def test_a_fault_does_not_reach_the_backward(caplog):
    model = two_layers()
    counted = engine_gradients(model, SimpleNamespace(optimizer=SimpleNamespace(averaged_gradients={})))
    counted._held = lambda: 1 / 0
    model(torch.ones(2, 8)).sum().backward()
    assert counted.broken
    assert [record.getMessage() for record in caplog.records] == [
        "The memory of the gradients is no longer counted, because of a fault; training continues."
    ]
