"""Autograd's engine adds up gradients in place where it may: the same allocations for blanks as for real tensors."""

import pytest
import torch
from real_allocations import real_allocations
from torch.utils.checkpoint import checkpoint

from hf_efficient.simulate.blank import blank
from hf_efficient.simulate.tensor_log import TensorLog

_SCALARS = 8
"""Bytes of the tensors that torch makes of a number in the code, which only the profiler sees."""


def used_four_times(weight, values):
    for _ in range(4):
        values = (values @ weight).relu()
    values.exp().sum().backward()


def residual_connections(weight, values):
    hidden = values @ weight
    for _ in range(3):
        hidden = hidden + torch.relu(hidden @ weight)
    hidden.exp().sum().backward()


def two_backwards(weight, values):
    for _ in range(2):
        (values @ weight).exp().sum().backward()


def one_gradient_for_two(weight, values):
    left, right = values @ weight, values @ weight
    ((left + right).exp() + left.sin() + right.cos()).sum().backward()


def a_gradient_that_a_hook_holds(weight, values):
    held = []
    hidden = values @ weight
    hidden.register_hook(held.append)
    (torch.relu(hidden) + hidden.exp()).sum().backward()
    return held


def a_gradient_that_a_view_holds(weight, values):
    held = []
    hidden = values @ weight
    hidden.register_hook(lambda gradient: held.append(gradient.t()))
    branch = torch.relu(hidden)
    branch.register_hook(lambda gradient: held.append(gradient.t()))
    (branch.exp() + branch.sin()).sum().backward()
    return held


def a_view_of_the_first_gradient_held(weight, values):
    held = []

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, hidden):
            return hidden.clone()

        @staticmethod
        def backward(ctx, gradient):
            gradient = gradient * 2
            held.append(gradient.view(-1))
            return gradient

    hidden = values @ weight
    (hidden.sin() + Keeps.apply(hidden).exp()).sum().backward()
    return held


def gradients_expanded(weight, values):
    hidden = values @ weight
    (hidden.sin().sum() + hidden.sum()).backward()
    hidden = values @ weight
    (hidden.sum() + hidden.sin().sum()).backward()


def recomputed_sums(weight, values):
    def layer(hidden):
        return (hidden @ weight) + torch.relu(hidden)

    hidden = values @ weight
    for reentrant in (False, True):
        hidden = checkpoint(layer, hidden, use_reentrant=reentrant, preserve_rng_state=False)
    hidden.exp().sum().backward()


def gradients_asked_for(weight, values):
    hidden = values @ weight
    return torch.autograd.grad((hidden.exp() + hidden.sin()).sum(), [weight])


@pytest.mark.parametrize(
    "code",
    [
        used_four_times,
        residual_connections,
        two_backwards,
        one_gradient_for_two,
        a_gradient_that_a_hook_holds,
        a_gradient_that_a_view_holds,
        a_view_of_the_first_gradient_held,
        gradients_expanded,
        recomputed_sums,
        gradients_asked_for,
    ],
)
def test_the_engine_allocates_for_blanks_what_it_does_for_real_tensors(code):
    weight = torch.randn(16, 16, requires_grad=True)
    values = torch.randn(8, 16)
    real = [size for size in real_allocations(lambda: code(weight, values)) if abs(size) > _SCALARS]
    logged = [size for size in blank_allocations(code) if abs(size) > _SCALARS]
    assert logged == real


def blank_allocations(code):
    weight = blank(16, 16, dtype=torch.float32).requires_grad_()
    values = blank(8, 16, dtype=torch.float32)
    log = TensorLog()
    log.add(weight, "weight", "weights")
    log.add(values, "values", "activations")
    with log:
        kept = code(weight, values)
    events = [size for _, size in log.events[2:]]
    del kept
    return events


def test_an_addition_outside_the_engine_never_writes_into_its_argument():
    first, second = blank(4, dtype=torch.float32), blank(4, dtype=torch.float32)
    assert (first + second) is not first
