"""Waits of ranks for one another: collectives that Python calls, marks in a DDP of one process, the end of a run."""

import json
import threading
import time
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import nn

from hf_efficient.recording.ranks import CollectiveWatch, RankMarks
from hf_efficient.recording.run_files import await_other_ranks


class Phase:
    """How often it was entered, and whether it is open."""

    times, open = 0, False

    @contextmanager
    def phase(self, name):
        assert name == "communication"
        self.times, self.open = self.times + 1, True
        yield
        self.open = False


@pytest.fixture
def entered():
    return Phase()


@pytest.fixture
def watch(entered, monkeypatch):
    monkeypatch.setattr(dist, "all_reduce", lambda *args, **kwargs: (entered.open, args, kwargs))
    monkeypatch.setattr(dist, "barrier", lambda: dist.all_reduce("inside"))
    watch = CollectiveWatch(entered)
    yield watch
    watch.remove()


def test_the_phase_is_open_in_a_collective_and_only_there(watch, entered):
    before = dist.all_reduce
    assert dist.all_reduce(1)[0] is False
    watch.install()
    assert dist.all_reduce(1, op="sum") == (True, (1,), {"op": "sum"})
    assert entered.open is False
    watch.remove()
    assert dist.all_reduce is before
    assert dist.all_reduce(1)[0] is False
    assert entered.times == 1


def test_a_collective_inside_another_one_opens_no_second_phase(watch, entered):
    watch.install()
    watch.install()
    assert dist.barrier()[0] is True
    assert entered.times == 1


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
    without = nn.parallel.DistributedDataParallel(Net(told, buffer=False))
    marks.watch(without)
    without(torch.ones(1, 2))
    assert told.what[4:] == ["forward"]  # without buffers nobody waits


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


START, SPAN, ALIVE, END = ({"kind": kind, "process": 0} for kind in ("process", "span", "alive", "end"))


@pytest.fixture
def four_ranks(monkeypatch):
    """Two of them on this machine."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")


def write_spans(folder, rank, *records):
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / f"spans.rank{rank}.jsonl").write_text(lines)


@pytest.mark.parametrize(
    ("records", "ended"),
    [
        ([START, SPAN, END], True),
        ([START, END, SPAN, ALIVE], True),  # what comes after the end of its training
        ([START, SPAN, ALIVE], False),
        ([START, END, START, ALIVE], False),  # the run was resumed
        ([], False),
    ],
)
def test_whether_a_rank_has_ended(four_ranks, tmp_path, records, ended):
    write_spans(tmp_path, 1, *records)
    assert await_other_ranks(tmp_path, most_seconds=0) is ended


def test_ranks_of_other_machines_are_waited_for_where_they_write_here(four_ranks, tmp_path):
    assert not await_other_ranks(tmp_path, most_seconds=0)  # the one of this machine is not there yet
    write_spans(tmp_path, 1, START, END)
    assert await_other_ranks(tmp_path, most_seconds=0)
    write_spans(tmp_path, 3, START, ALIVE)
    assert not await_other_ranks(tmp_path, most_seconds=0)


def test_it_waits_for_the_last_one_and_not_for_ever(four_ranks, tmp_path):
    write_spans(tmp_path, 1, START)
    late = threading.Timer(0.2, write_spans, (tmp_path, 1, START, END))
    late.start()
    assert await_other_ranks(tmp_path, most_seconds=30)
    late.join()
    write_spans(tmp_path, 1, START)
    began = time.monotonic()
    assert not await_other_ranks(tmp_path, most_seconds=0.1)
    assert time.monotonic() - began >= 0.1


def test_one_process_waits_for_nobody(tmp_path, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    write_spans(tmp_path, 1, START)  # of an earlier run with more of them
    assert await_other_ranks(tmp_path, most_seconds=0)
