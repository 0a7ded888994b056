"""What forwards keep for their backwards, worked out by hand."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hf_efficient.recording.activations import HOOKS_REFUSED, ForwardWatch, Kept, foreign_hooks

ROWS, WIDTH, HIDDEN, VOCABULARY = 4, 3, 5, 7


class Perceptron(nn.Module):
    """Two layers; its output has logits, as a language model's."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, inputs):
        return SimpleNamespace(logits=self.second(torch.relu(self.first(inputs))))


class Block(nn.Module):
    """``tanh(linear(x)) * mask``, its activations computed again in the backward where it is asked to."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.linear, self.reentrant = nn.Linear(HIDDEN, HIDDEN), reentrant

    def inner(self, hidden, mask):
        return torch.tanh(self.linear(hidden)) * mask

    def forward(self, hidden, mask=None):
        if self.reentrant is None:
            return self.inner(hidden, mask)
        return checkpoint(functools.partial(self.inner, mask=mask), hidden, use_reentrant=self.reentrant)


class Blocks(nn.Module):
    def __init__(self, reentrant=None):
        super().__init__()
        self.blocks = nn.ModuleList(Block(reentrant) for _ in range(2))

    def forward(self, hidden, mask):
        for block in self.blocks:
            hidden = block(hidden, mask=mask)
        return hidden.sum()


def kept(model, forward, checkpointed=(), vocabulary=None):
    """What the forward keeps, and its loss."""
    watch = ForwardWatch(model, checkpointed, vocabulary)
    watch.start()
    try:
        loss = forward()
    finally:
        watch.stop()
    return watch.kept(), loss


@pytest.mark.parametrize("vocabulary", [VOCABULARY, None])
def test_a_perceptron_by_hand(vocabulary):
    model, inputs, targets = Perceptron(), torch.randn(ROWS, WIDTH), torch.randint(VOCABULARY, (ROWS,))
    found, loss = kept(model, lambda: nn.functional.cross_entropy(model(inputs).logits, targets), (), vocabulary)
    # The first layer keeps its input, relu its output, which is the input of the second; the loss keeps its targets in
    # int64 and the sum of their weights. The weights themselves are none of it.
    activations = 4 * ROWS * WIDTH + 4 * ROWS * HIDDEN + 8 * ROWS + 4
    log_softmax = output = 4 * ROWS * VOCABULARY
    if vocabulary is None:
        assert found == Kept({"cpu": activations + log_softmax}, {})
    else:
        assert found == Kept({"cpu": activations}, {"cpu": log_softmax + output})
    loss.backward()
    assert model.first.weight.grad is not None


HIDDEN_STATE = 4 * ROWS * HIDDEN
MASK = 4 * ROWS


@pytest.mark.parametrize(
    ("reentrant", "expected"),
    [
        # Per block the input of its linear layer (the output of the block before), the output of tanh, and the mask.
        (None, 2 * 2 * HIDDEN_STATE + MASK),
        # Per block its input; the mask, which the recomputation needs again, once.
        (False, 2 * HIDDEN_STATE + MASK),
        (True, 2 * HIDDEN_STATE + MASK),
    ],
)
def test_checkpointed_layers_keep_their_inputs(reentrant, expected):
    model = Blocks(reentrant)
    inputs, mask = torch.randn(ROWS, HIDDEN, requires_grad=True), torch.ones(ROWS, 1)
    found, loss = kept(model, lambda: model(inputs, mask), [] if reentrant is None else model.blocks)
    assert found == Kept({"cpu": expected}, {})
    loss.backward()
    gradient, inputs.grad = inputs.grad, None
    model(inputs, mask).backward()
    assert torch.equal(gradient, inputs.grad)


def test_what_the_graph_no_longer_holds_is_not_counted():
    model, inputs = Perceptron(), torch.randn(ROWS, WIDTH)

    def forward():
        for _ in range(3):
            lost = torch.exp(model.first(inputs) * 2)  # its output, saved by exp, goes with it
            del lost
        return model.first(inputs).sum()

    assert kept(model, forward)[0] == Kept({"cpu": 4 * ROWS * WIDTH}, {})


def test_a_transposed_copy_of_the_heads_weight_is_no_logits():
    model, inputs = Perceptron(), torch.randn(ROWS, HIDDEN, requires_grad=True)

    def forward():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model.second(inputs).float().sum()

    found, _ = kept(model, forward, (), VOCABULARY)
    # In bfloat16: the input, and a copy of the weight, which is saved transposed, (hidden, vocabulary).
    assert found == Kept({"cpu": 2 * ROWS * HIDDEN + 2 * VOCABULARY * HIDDEN}, {})


def test_without_gradients_nothing_is_kept():
    model, inputs, mask = Blocks(False), torch.randn(ROWS, HIDDEN), torch.ones(ROWS, 1)
    with torch.no_grad():
        assert kept(model, lambda: model(inputs, mask), model.blocks)[0] == Kept({}, {})


def test_no_hook_stays_after_an_exception():
    model = Perceptron()
    watch = ForwardWatch(model, [model.first], VOCABULARY)
    watch.start()
    assert foreign_hooks()
    try:
        with pytest.raises(RuntimeError):
            model(torch.randn(ROWS, WIDTH + 1))
    finally:
        watch.stop()
    assert not foreign_hooks()
    assert not model._forward_hooks
    assert not model.first._forward_pre_hooks


def test_what_torch_says_where_it_refuses():
    model = Perceptron()
    with pytest.raises(RuntimeError, match=HOOKS_REFUSED):
        kept(model, lambda: torch.func.grad(lambda x: x.sum())(torch.ones(2)))
