"""Snapshots of the allocator, with one in place of CUDA's."""

import json
import pickle

import pytest
import torch

from hf_efficient.profilers.instrument import Place
from hf_efficient.profilers.torch_trace import MemoryHistory

BLOCKS = [
    {"address": 0, "size": 64, "requested_size": 60, "state": "active_allocated", "frames": []},
    {"address": 64, "size": 32, "state": "inactive"},
]
SEGMENT = {"address": 0, "total_size": 96, "active_size": 64, "blocks": BLOCKS}
SNAPSHOT = {"segments": [SEGMENT], "device_traces": [[]]}


class Fake:
    """``calls``: to record and to stop; ``observers``: of a want of memory."""

    def __init__(self):
        self.calls, self.observers = [], []


@pytest.fixture
def fake(monkeypatch):
    made = Fake()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {"num_alloc_retries": 2})
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **how: made.calls.append(how))
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: SNAPSHOT)
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", made.observers.append, raising=False)
    return made


def train(history, folder, steps=3):
    history.files = []
    history.start(Place(folder, 1))
    for step in range(1, steps + 1):
        history.step_ends(step)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_after_chosen_steps_and_at_the_end(tmp_path, fake):
    history = MemoryHistory(at_steps=[2], at_end=True, max_entries=50)
    train(history, tmp_path)
    assert names(tmp_path) == ["memory.rank1.step2.json", "memory.rank1.step2.pickle"]
    history.stop()
    assert names(tmp_path)[:2] == ["memory.rank1.end.json", "memory.rank1.end.pickle"]
    assert len(history.files) == 4
    assert fake.calls == [{"max_entries": 50, "stacks": "python"}, {"enabled": None}]
    assert pickle.loads((tmp_path / "memory.rank1.step2.pickle").read_bytes()) == SNAPSHOT
    told = json.loads((tmp_path / "memory.rank1.step2.json").read_text())
    assert (told["moment"], told["reserved_bytes"], told["peak_bytes"]) == ("after step 2", 96, 60)
    assert told["allocation_retries"] == 2


def test_when_memory_runs_out(tmp_path, fake):
    history = MemoryHistory()
    train(history, tmp_path)
    (ran_out,) = fake.observers
    ran_out(0, 2**30, 2**34, 2**20)  # device, wanted, in all, free
    assert names(tmp_path) == ["memory.rank1.out_of_memory.json", "memory.rank1.out_of_memory.pickle"]
    history.stop()
    train(history, tmp_path)
    assert len(fake.observers) == 1  # torch cannot take one back: there is one for all trainings
