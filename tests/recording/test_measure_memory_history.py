"""When snapshots are written, with an allocator in place of CUDA's."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from hf_efficient.accounting.memory_history import read_snapshot
from hf_efficient.profilers.instrument import Place
from hf_efficient.profilers.memory_history import CudaAllocator, MemoryHistory

SNAPSHOT = {
    "segments": [
        {
            "address": 0,
            "total_size": 96,
            "active_size": 64,
            "blocks": [
                {"address": 0, "size": 64, "requested_size": 60, "state": "active_allocated", "frames": []},
                {"address": 64, "size": 32, "state": "inactive"},
            ],
        }
    ],
    "device_traces": [[]],
}


class Fake:
    def __init__(self, fails=False, labels=None):
        self.calls, self.observers, self.fails, self.labels = [], [], fails, labels

    def is_here(self):
        return True

    def record(self, max_entries):
        self.calls.append(max_entries)

    def stop(self):
        self.calls.append("stop")

    def snapshot(self):
        if self.fails:
            raise RuntimeError("no host memory")
        return SNAPSHOT

    def when_out_of_memory(self, call):
        self.observers.append(call)

    def retries(self):
        return 2

    def device(self):
        return 0

    def labeller(self):
        return None if self.labels is None else self.labels.append


def train(history, folder, steps=3):
    history.files = []
    history.start(Place(folder, 1))
    for step in range(1, steps + 1):
        history.step_ends(step)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_after_chosen_steps_and_at_the_end(tmp_path):
    fake = Fake()
    history = MemoryHistory(at_steps=[2], at_end=True, max_entries=50, allocator=fake)
    train(history, tmp_path)
    assert names(tmp_path) == ["memory.rank1.step2.json", "memory.rank1.step2.pickle"]
    history.stop()
    assert names(tmp_path)[:2] == ["memory.rank1.end.json", "memory.rank1.end.pickle"]
    assert len(history.files) == 4
    assert fake.calls == [50, "stop"]
    assert read_snapshot(tmp_path / "memory.rank1.step2.pickle") == SNAPSHOT
    told = json.loads((tmp_path / "memory.rank1.step2.json").read_text())
    assert (told["moment"], told["reserved_bytes"], told["peak_bytes"]) == ("after step 2", 96, 60)
    assert told["allocation_retries"] == 2


def test_when_memory_runs_out(tmp_path):
    fake = Fake()
    history = MemoryHistory(allocator=fake)
    train(history, tmp_path)
    (ran_out,) = fake.observers
    ran_out()
    assert names(tmp_path) == ["memory.rank1.out_of_memory.json", "memory.rank1.out_of_memory.pickle"]
    history.stop()
    train(history, tmp_path)
    assert len(fake.observers) == 1  # torch cannot take one back: there is one for all trainings


def test_after_the_training_memory_may_run_out_unobserved(tmp_path):
    fake = Fake()
    history = MemoryHistory(allocator=fake)
    train(history, tmp_path)
    history.stop()
    fake.observers[0]()
    assert names(tmp_path) == []


def test_a_fault_at_out_of_memory_does_not_hide_it(tmp_path):
    fake = Fake(fails=True)
    history = MemoryHistory(modules=False, allocator=fake)
    train(history, tmp_path)
    fake.observers[0]()
    assert history.notes == ["no snapshot at out-of-memory: RuntimeError: no host memory"]


def test_not_asked_for_at_out_of_memory(tmp_path):
    fake = Fake()
    train(MemoryHistory(on_out_of_memory=False, allocator=fake), tmp_path)
    assert fake.observers == []


def test_without_cuda_it_says_so_and_the_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(CudaAllocator, "is_here", lambda self: False)
    history = MemoryHistory(at_steps=[1], at_end=True)
    train(history, tmp_path)
    history.stop()
    assert history.notes == ["needs a CUDA device, and there is none"]
    assert names(tmp_path) == []


@pytest.mark.parametrize("at_end", [True, False])
def test_a_second_stop_does_nothing(tmp_path, at_end):
    fake = Fake()
    history = MemoryHistory(at_end=at_end, allocator=fake)
    train(history, tmp_path)
    history.stop()
    written = len(history.files)
    history.stop()
    assert (len(history.files), fake.calls.count("stop")) == (written, 1)


def start(history, folder, model):
    history.files = []
    history.start(Place(folder, 0, None, model))


def test_allocations_are_labelled_by_their_module_until_it_stops(tmp_path):
    fake, model = Fake(labels=[]), nn.Sequential(nn.Linear(2, 2))
    history = MemoryHistory(allocator=fake)
    start(history, tmp_path, model)
    model(torch.ones(1, 2))
    assert fake.labels == ["Sequential", "0", "Sequential", ""]
    history.stop()
    assert fake.labels == ["Sequential", "0", "Sequential", "", ""]
    model(torch.ones(1, 2))
    assert len(fake.labels) == 5
    (note,) = history.notes
    assert note.startswith("naming the modules took ")
    assert note.endswith(" of the host's time in 4 calls, which its cost leaves out")


def test_not_asked_for_no_module_is_touched(tmp_path):
    fake, model = Fake(labels=[]), nn.Linear(2, 2)
    history = MemoryHistory(modules=False, allocator=fake)
    start(history, tmp_path, model)
    assert not model._forward_pre_hooks
    history.stop()
    assert (fake.labels, history.notes) == ([], [])


@pytest.mark.parametrize(
    ("labels", "model", "told"),
    [
        (None, nn.Linear(2, 2), "this torch cannot label allocations, 2.10 can"),
        ([], None, "the model is compiled, or not known"),
    ],
)
def test_where_no_module_can_be_named_it_says_so(tmp_path, labels, model, told):
    history = MemoryHistory(allocator=Fake(labels=labels))
    start(history, tmp_path, model)
    (note,) = history.notes
    assert note == f"modules are told by the stacks alone: {told}"
    history.stop()


def test_a_build_without_cuda_has_no_labeller():
    assert CudaAllocator().labeller() is getattr(torch._C, "_cuda_setMemoryMetadata", None)
