"""Snapshots of the allocator, with one in place of CUDA's."""

import json
import pickle

from hf_efficient.profilers.instrument import Place
from hf_efficient.profilers.torch_trace import CudaAllocator, MemoryHistory

BLOCKS = [
    {"address": 0, "size": 64, "requested_size": 60, "state": "active_allocated", "frames": []},
    {"address": 64, "size": 32, "state": "inactive"},
]
SEGMENT = {"address": 0, "total_size": 96, "active_size": 64, "blocks": BLOCKS}
SNAPSHOT = {"segments": [SEGMENT], "device_traces": [[]]}


class Fake(CudaAllocator):
    def __init__(self, fails=False):
        self.calls, self.observers, self.fails = [], [], fails
        self.record = self.calls.append
        self.when_out_of_memory = self.observers.append

    is_here = staticmethod(lambda: True)
    retries = staticmethod(lambda: 2)
    device = staticmethod(lambda: 0)

    def stop(self):
        self.calls.append("stop")

    def snapshot(self):
        if self.fails:
            raise RuntimeError("no host memory")
        return SNAPSHOT


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
    assert pickle.loads((tmp_path / "memory.rank1.step2.pickle").read_bytes()) == SNAPSHOT
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
