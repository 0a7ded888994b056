"""Equal words for equal bits, and for nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hf_efficient.preflight.process import digest, local_part, optimizer_digests, weight_digests


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.int64])
def test_one_bit_two_swapped_numbers_and_the_shape_tell(dtype):
    held = torch.arange(7).to(dtype)
    assert digest(held) == digest(held.clone())
    other = held.clone()
    other[3] += 1
    swapped = held.clone()
    swapped[2], swapped[5] = held[5], held[2]
    words = {digest(one) for one in (held, other, swapped, held.reshape(7, 1), held[:6])}
    assert len(words) == 5


def test_a_sum_that_stays_the_same_tells_too():
    one = torch.tensor([1, 2, 3, 4], dtype=torch.int32)
    assert digest(one) != digest(torch.tensor([2, 1, 3, 4], dtype=torch.int32))
    assert digest(one) != digest(torch.tensor([2, 2, 2, 4], dtype=torch.int32))
    assert digest(torch.zeros(3)) != digest(torch.tensor([0.0, -0.0, 0.0]))


def test_places_beyond_a_chunk_and_strides_count():
    held = torch.zeros((1 << 20) + 3)
    late = held.clone()
    late[-1] = 1
    assert digest(held) != digest(late)
    square = torch.arange(6.0).reshape(2, 3)
    assert digest(square.t()) == digest(square.t().contiguous())
    assert digest(torch.zeros(0)) == digest(torch.ones(0))
    assert digest(torch.tensor(2.0)) != digest(torch.tensor(3.0))


def test_a_partitioned_parameter_is_its_partition():
    parameter = nn.Parameter(torch.zeros(0))
    parameter.ds_tensor = torch.ones(3)
    assert torch.equal(local_part(parameter), torch.ones(3))


class Wrapped:
    def __init__(self, optimizer: object) -> None:
        self.optimizer = optimizer


def test_what_is_trained_and_the_state_of_its_optimizer_by_name():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert set(weight_digests(model)) == {"1.weight", "1.bias"}
    told = optimizer_digests(Wrapped(Wrapped(optimizer)), model)
    assert set(told) == {f"1.{name} {key}" for name in ("weight", "bias") for key in ("exp_avg", "exp_avg_sq", "step")}
    before = dict(told)
    optimizer.step()
    after = optimizer_digests(optimizer, model)
    assert all(after[name] != before[name] for name in before)


def test_flat_copies_that_an_engine_trains_are_compared_too():
    model, flat = nn.Linear(2, 1), nn.Parameter(torch.ones(3))
    told = optimizer_digests(torch.optim.SGD([flat]), model)
    assert told == {"partition 0": digest(flat)}
