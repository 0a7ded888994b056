"""How a run stops: ranks after the same step, and workers with their training."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from hf_efficient.recording import budget
from hf_efficient.recording.budget import Agreement
from hf_efficient.recording.stop import ShelteredStart, StopRequest


@pytest.fixture
def ranks(monkeypatch):
    """Two of them; the other's words are in ``other``: whether it was asked, minus the steps to the next exchange."""
    one, clock, exchanges = Agreement(0, 1), [0.0], []
    one._shared, one.other = True, [0, -100]

    def all_reduce(sent, **_):
        exchanges.append(clock[0])
        sent.copy_(torch.maximum(sent, torch.tensor(one.other)))

    monkeypatch.setattr(budget, "dist", SimpleNamespace(all_reduce=all_reduce, ReduceOp=SimpleNamespace(MAX=None)))
    monkeypatch.setattr(budget.time, "monotonic", lambda: clock[0])

    def after(step, at, asked=False):
        clock[0] = at
        return one.anywhere(asked, step)

    return SimpleNamespace(after=after, one=one, exchanges=exchanges)


def test_ranks_with_long_steps_ask_each_other_after_each(ranks):
    assert [ranks.after(step, 3.0 * step) for step in (1, 2, 3)] == [False] * 3
    ranks.one.other[0] = 1
    assert ranks.after(4, 12.0)
    assert ranks.exchanges == [3, 6, 9, 12]


def test_ranks_with_short_steps_ask_each_other_every_second_and_stop_together(ranks):
    """Steps of 0.1 s: after the second one, whose time is known, the next 10 are silent, also where one is asked."""
    found = [ranks.after(step, 0.1 * step, asked=step >= 5) for step in range(1, 13)]
    assert found == [False] * 11 + [True]
    assert len(ranks.exchanges) == 3


def test_the_rank_that_is_slowest_sets_the_next_exchange(ranks):
    ranks.one.other[1] = -3
    assert [ranks.after(step, 0.001 * step) for step in range(1, 12)] == [False] * 11
    assert [round(1000 * at) for at in ranks.exchanges] == [1, 2, 5, 8, 11]


def test_a_single_process_stops_at_once():
    assert [Agreement(0, 1).anywhere(asked, 1) for asked in (False, True)] == [False, True]


def test_who_asks_again_half_a_minute_later_asked_in_vain():
    request = StopRequest()
    assert not request.asked
    assert [request.ask(now) for now in (1000.0, 1000.1, 1029.9, 1030.0)] == [True, True, True, False]
    assert request.asked


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


def session_of(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return None


def test_a_worker_whose_training_process_is_gone_ends_by_anybodys_signal(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ORPHAN], cwd=tmp_path, start_new_session=True) as parent:
        assert parent.wait(SECONDS) == 0
        (worker,) = [one for one in psutil.process_iter() if session_of(one) == parent.pid]
    from_elsewhere(worker.pid)
    worker.wait(SECONDS)
