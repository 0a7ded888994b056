"""Bytes of tensors by their storages, what forwards keep for their backwards, and what leaves no trace."""

import functools
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hf_efficient.recording import activations as watching


def bytes_of(tensors):
    found = watching.Storages()
    found.add(tensors)
    return found.bytes_by_device()


def model_bytes(model):
    return bytes_of(tensor for tensor, _ in watching.model_tensors(model))


def test_what_is_shared_is_counted_once_and_in_full():
    block = torch.zeros(10, 3)
    assert bytes_of([block, block.T, block[2:4], block.view(-1)[:1]]) == {"cpu": 120}
    assert bytes_of([block[2:4]]) == {"cpu": 120}  # the whole storage lives as long as a view of it
    assert bytes_of([block, block.clone(), torch.zeros(2, dtype=torch.int64)]) == {"cpu": 120 + 120 + 16}
    assert bytes_of([torch.empty(0), torch.zeros(3, device="meta")]) == {}


def test_a_sparse_gradient_is_its_indices_and_values():
    table = nn.Embedding(100, 4, sparse=True)
    table(torch.tensor([1, 7, 7])).sum().backward()
    assert bytes_of([table.weight.grad]) == {"cpu": 3 * 8 + 3 * 4 * 4}


def test_tied_weights_and_buffers_of_a_model():
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 3, bias=False))
    model[2].weight = nn.Parameter(model[0].weight.T)  # another parameter on the same memory
    model[0].requires_grad_(False)
    # weight 15, bias 5, norm 5 + 5, running mean and variance 5 + 5, and a count in int64
    assert model_bytes(model) == {"cpu": 4 * (15 + 5 + 10 + 10) + 8}
    trained = [trained for _, trained in watching.model_tensors(model)]
    assert trained == [False, False, True, True, False, False, False, True]


def test_bytes_of_an_8_bit_layer_before_and_after_its_first_forward():
    import bitsandbytes

    layer = bitsandbytes.nn.Linear8bitLt(64, 32, bias=False, has_fp16_weights=False)
    layer.weight = bitsandbytes.nn.Int8Params(torch.randn(32, 64), requires_grad=False, has_fp16_weights=False)
    layer.to("cpu")
    for _ in range(2):
        assert model_bytes(layer) == {"cpu": 32 * 64 + 32 * 4}
        layer(torch.randn(2, 64))


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
    watch = watching.ForwardWatch(model, checkpointed, vocabulary)
    watch.start()
    try:
        loss = forward()
    finally:
        watch.close()
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
        assert found == watching.Kept({"cpu": activations + log_softmax}, {})
    else:
        assert found == watching.Kept({"cpu": activations}, {"cpu": log_softmax + output})
    loss.backward()
    assert model.first.weight.grad is not None


HIDDEN_STATE, MASK = 4 * ROWS * HIDDEN, 4 * ROWS


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
    assert found == watching.Kept({"cpu": expected}, {})
    loss.backward()
    gradient, inputs.grad = inputs.grad, None
    model(inputs, mask).backward()
    assert torch.equal(gradient, inputs.grad)


def test_no_hook_stays_after_an_exception():
    model = Perceptron()
    watch = watching.ForwardWatch(model, [model.first], VOCABULARY)
    watch.start()
    assert watching.foreign_hooks()
    try:
        with pytest.raises(RuntimeError):
            model(torch.randn(ROWS, WIDTH + 1))
    finally:
        watch.close()
    assert not watching.foreign_hooks()
    assert not model._forward_hooks
    assert not model.first._forward_pre_hooks


def draw():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_generators_are_as_before_even_after_an_error():
    with watching.kept_random_state():
        expected = draw()
    with watching.kept_random_state("cpu"):
        assert draw() == expected
    with pytest.raises(ZeroDivisionError), watching.kept_random_state():
        assert draw()[0] / 0
    with watching.kept_random_state():
        assert draw() == expected


def test_modes_are_as_before_module_by_module():
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout(), nn.Linear(1, 1))
    model[1].eval()
    with pytest.raises(TypeError), watching.kept_modes(model):
        assert model.train()[0].eval() / 0
    assert [module.training for module in model.modules()] == [True, True, False, True]
