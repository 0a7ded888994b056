"""Whether a gradient can pass."""

import torch
from torch.utils.checkpoint import checkpoint

from hf_efficient.callbacks.checks import passes_gradient


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
