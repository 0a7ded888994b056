"""The state that stands for bitsandbytes' optimizers is what the real ones keep, built as the Trainer builds them."""

from __future__ import annotations

import bitsandbytes as bnb
import pytest
import torch
from torch import nn
from transformers import Trainer, TrainingArguments
from transformers.training_args import OptimizerNames

from hf_efficient.planning.arguments import BitsAndBytesState, is_bitsandbytes, stand_in

NAMES = [one.value for one in OptimizerNames if is_bitsandbytes(one.value)]


class Model(nn.Module):
    """Parameters below, at and above the sizes at which something changes."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(70, 80)
        self.head = nn.Linear(80, 70, bias=False)
        self.tied = nn.Linear(80, 70, bias=False)
        self.tied.weight = self.embedding.weight
        self.below = nn.Parameter(torch.randn(63, 65))  # 4,095 values
        self.at = nn.Parameter(torch.randn(64, 64))
        self.odd = nn.Parameter(torch.randn(70, 71))
        self.frozen = nn.Parameter(torch.randn(70, 70), requires_grad=False)
        self.norm = nn.LayerNorm(8)


def bytes_of(optimizer, model):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: sum(
            value.untyped_storage().nbytes()
            for key, value in state.items()
            if isinstance(value, torch.Tensor) and not key.startswith("qmap")  # tables that all parameters share
        )
        for parameter, state in optimizer.state.items()
    }


def stepped(optimizer, model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return bytes_of(optimizer, model)


@pytest.mark.parametrize("name", NAMES)
def test_the_state_is_as_large_as_that_of_the_trainers_optimizer(name, recipe, tmp_path):
    model = Model()
    trainer = Trainer(model, TrainingArguments(str(tmp_path), optim=name, use_cpu=True, report_to=[]))
    real = trainer.create_optimizer()
    assert isinstance(real, bnb.optim.optimizer.Optimizer8bit)
    stood = stand_in(recipe(train={"optim": name}), model)
    assert stepped(stood, model) == stepped(real, model)
    assert stepped(stood, model) == stepped(real, model)  # the second step adds nothing
    assert stood.paged_bytes == 0


def test_no_other_optimizer_has_a_stand_in(recipe, tmp_path):
    assert len(NAMES) == 15
    for name in OptimizerNames:
        if name.value not in NAMES:
            assert stand_in(recipe(train={"optim": name.value}), Model()) is None
            assert not name.value.startswith("paged")
    assert stand_in(recipe(), Model()) is None


@pytest.mark.parametrize(
    ("moments", "eight_bit", "paged", "inside", "outside"),
    [
        # 400 x 250 = 100,000 values in 391 blocks of 256
        ((1, 1), True, False, 2 * (100_000 + 4 * 391), 0),
        ((1, 1), True, True, 2 * 4 * 391, 2 * 100_000),
        ((1, 1), False, True, 0, 2 * 4 * 100_000),
        ((2, 1), True, True, 3 * 4 * 391, 3 * 100_000),
        ((1,), False, False, 4 * 100_000, 0),
    ],
)
def test_bytes_inside_and_outside_of_the_allocator_by_hand(moments, eight_bit, paged, inside, outside):
    weight = nn.Parameter(torch.randn(400, 250))
    weight.grad = torch.randn_like(weight)
    optimizer = BitsAndBytesState([weight], moments=moments, eight_bit=eight_bit, paged=paged)
    for _ in range(2):
        optimizer.step()
        held = sum(value.untyped_storage().nbytes() for value in optimizer.state[weight].values())
        assert (held, optimizer.paged_bytes) == (inside, outside)


def test_a_parameter_just_small_enough_is_not_paged():
    weight = nn.Parameter(torch.randn(99_999))
    weight.grad = torch.randn_like(weight)
    optimizer = BitsAndBytesState([weight], moments=(1,), eight_bit=False, paged=True)
    optimizer.step()
    assert (optimizer.state[weight]["state1"].numel(), optimizer.paged_bytes) == (99_999, 0)


def test_without_a_gradient_there_is_no_state():
    optimizer = BitsAndBytesState([nn.Parameter(torch.ones(3))], moments=(1,), eight_bit=False, paged=False)
    optimizer.step()
    assert dict(optimizer.state) == {}
