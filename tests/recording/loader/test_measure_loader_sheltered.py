from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from hf_efficient.recording.stop import ShelteredStart

SECONDS = 20


class Numbers(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor([os.getpid(), index])


def from_elsewhere(pid: int) -> None:
    subprocess.run(["kill", "-TERM", str(pid)], check=True)


def test_a_cluster_does_not_end_a_worker_and_its_training_does():
    seen = []
    loader = DataLoader(Numbers(), num_workers=1, prefetch_factor=1, worker_init_fn=ShelteredStart(seen.append))
    batches = iter(loader)
    pid = int(next(batches)[0, 0])
    from_elsewhere(pid)
    assert [int(batch[0, 1]) for batch in batches] == [1, 2, 3]
    assert seen == []  # called in the worker


def test_the_training_process_can_end_it():
    batches = iter(DataLoader(Numbers(), num_workers=1, prefetch_factor=1, worker_init_fn=ShelteredStart()))
    (process,) = batches._workers
    next(batches)
    os.kill(process.pid, signal.SIGTERM)
    process.join(SECONDS)
    assert process.exitcode == 0


ORPHAN = """
import os, pathlib, signal, sys, time
from hf_efficient.recording.stop import ShelteredStart
if os.fork():
    while not os.path.exists("sheltered"):
        time.sleep(0.01)
    os._exit(0)
ShelteredStart()(0)
open("sheltered", "w").close()
time.sleep(60)
"""


def test_a_worker_whose_training_process_is_gone_ends_by_anybodys_signal(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ORPHAN], cwd=tmp_path, start_new_session=True) as parent:
        assert parent.wait(SECONDS) == 0
        (worker,) = [one for one in psutil.process_iter() if _session(one.pid) == parent.pid]
    from_elsewhere(worker.pid)
    worker.wait(SECONDS)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def test_torchs_own_worker_ends_the_training():
    """What the shelter is for."""
    batches = iter(DataLoader(Numbers(), num_workers=1, prefetch_factor=1))
    next(batches)
    (process,) = batches._workers
    from_elsewhere(process.pid)
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        _wait_for(process, batches)


def _wait_for(process, batches):
    process.join(SECONDS)  # where the signal of its end may come
    list(batches)
