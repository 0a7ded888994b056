"""Marks between a rank's own work and its waits, in a DDP of one process."""

from __future__ import annotations

import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from hf_efficient.recording.ranks import RankMarks

WAIT = 0.2


class Told:
    """What is begun and ended, and when."""

    def __init__(self):
        self.what, self.at = [], []

    def enter(self, name, instead_of=None):
        self._note(f"+{name} instead of {instead_of}")
        return 1

    def leave(self, token, on_device=None, then=None):
        if token:
            self._note(f"-{on_device} then {then}")

    def _note(self, text):
        self.what.append(text)
        self.at.append(time.perf_counter())


class Net(nn.Module):
    """With a buffer, and a word in its forward."""

    def __init__(self, told, buffer=True):
        super().__init__()
        self.told = told
        self.layer = nn.Linear(2, 1)
        if buffer:
            self.register_buffer("scale", torch.ones(1))

    def forward(self, inputs):
        self.told.what.append("forward")
        return self.layer(inputs).sum()


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def group():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def test_buffers_are_handed_out_before_the_forward_of_the_module_inside(group, told):
    marks, model = RankMarks(told), nn.parallel.DistributedDataParallel(Net(told))
    marks.watch(model)
    marks.watch(model)
    model(torch.ones(1, 2))
    assert told.what == ["+communication instead of forward", "-communication then forward", "forward"]
    marks.remove()
    model(torch.ones(1, 2))
    assert told.what[3:] == ["forward"]


def test_without_buffers_nobody_waits_in_the_forward(group, told):
    marks, model = RankMarks(told), nn.parallel.DistributedDataParallel(Net(told, buffer=False))
    marks.watch(model)
    model(torch.ones(1, 2))
    assert told.what == ["forward"]


def test_the_wait_for_the_gradients_of_other_ranks_lies_behind_the_ranks_own_backward(group, told):
    model = nn.parallel.DistributedDataParallel(Net(told))

    def late(_, bucket):  # the other ranks' part arrives a while after all of this rank's gradients are there
        arrived = torch.futures.Future()
        threading.Timer(WAIT, lambda: arrived.set_result(bucket.buffer())).start()
        return arrived

    model.register_comm_hook(None, late)
    marks = RankMarks(told)
    marks.watch(model)
    loss = model(torch.ones(1, 2))
    del told.what[:], told.at[:]
    began = time.perf_counter()
    with marks.backward(loss):
        loss.backward()
    assert told.what == ["+communication instead of backward", "-communication then None"]
    assert told.at[0] - began < 0.5 * WAIT
    assert told.at[1] - told.at[0] > 0.5 * WAIT
    assert torch.equal(model.module.layer.weight.grad, torch.ones(1, 2))


def test_of_another_wrapper_the_device_is_not_told(told):
    model, marks = Net(told), RankMarks(told)
    marks.watch(model)
    loss = model(torch.ones(1, 2))
    with marks.backward(loss):
        loss.backward()
    assert told.what == ["forward", "+communication instead of None", "-None then None"]
    assert marks.exchange() == {}


def test_ddps_own_log_tells_the_exchange(group, told):
    marks, model = RankMarks(told), nn.parallel.DistributedDataParallel(Net(told))
    marks.watch(model)
    for _ in range(3):
        model(torch.ones(1, 2)).backward()
    found = marks.exchange()
    assert 0 <= found["covered_seconds"] <= found["seconds"]
    assert found["seconds"] > 0
    marks.remove()
    assert marks.exchange() == {}


def test_a_loss_without_gradients_is_left_to_the_backward_to_complain_of(told):
    with pytest.raises(RuntimeError, match="does not require grad"), RankMarks(told).backward(torch.ones(())):
        torch.ones(()).backward()
    with RankMarks(told).backward(None):
        pass
    assert told.what == []
