"""How a run stops: ranks after the same step, as threads and a dictionary show, and workers with their training."""

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from hf_efficient.recording import stop as stop_agreement
from hf_efficient.recording.stop import ShelteredStart, StopAgreement, StopRequest
from tests.waiting import wait_for


class Store:
    """What the ranks share."""

    def __init__(self):
        self.values: dict[str, bytes] = {}
        self.broken = False

    def set(self, key, value):
        self.values[key] = value.encode()

    def get(self, key):
        return self.values[key]

    def check(self, keys):
        if self.broken:
            raise RuntimeError("the store is gone")
        return all(key in self.values for key in keys)


class Ranks:
    """Train together until they stop: no rank begins a step before all have ended the one before."""

    def __init__(self, count, step_seconds, steps=100_000):
        self.store, self.asked, self.stopped = Store(), [False] * count, [None] * count
        self._barrier, self._step_seconds, self._steps = threading.Barrier(count), step_seconds, steps
        self.agreements = [
            StopAgreement(lambda rank=rank: self.asked[rank], rank, count, self.store) for rank in range(count)
        ]
        self._threads = [threading.Thread(target=self._train, args=(rank,), daemon=True) for rank in range(count)]

    def _train(self, rank):
        agreement = self.agreements[rank]
        agreement.begin(0)
        for step in range(1, self._steps + 1):
            self._barrier.wait(20)  # the collective of a step
            time.sleep(self._step_seconds[rank])
            if agreement.after(step):
                self.stopped[rank] = step
                break
        agreement.close()

    def run(self, ask=None, after_seconds=0.3):
        for thread in self._threads:
            thread.start()
        time.sleep(after_seconds)
        for rank in ask or ():
            self.asked[rank] = True
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(stop_agreement, "_OWN_SECONDS", 0.01)
    monkeypatch.setattr(stop_agreement, "_OTHERS_SECONDS", 0.02)
    monkeypatch.setattr(stop_agreement, "_ANSWER_SECONDS", 0.005)


@pytest.mark.parametrize("asked", [(0, 1, 2), (0,), (2,)])
@pytest.mark.parametrize("step_seconds", [(0.2, 0.2, 0.2), (0.001, 0.001, 0.002)])
def test_all_stop_after_the_same_step_whoever_is_asked(asked, step_seconds):
    ranks = Ranks(3, step_seconds)
    ranks.run(asked)
    assert ranks.stopped[0] is not None
    assert len(set(ranks.stopped)) == 1


def test_a_long_step_is_the_last_one():
    """Asked in step 1, of 0.8 s: the threads agree on a step while it goes on, and that is the next one to end."""
    ranks = Ranks(2, (0.8, 0.8))
    ranks.run((1,), after_seconds=0.2)
    assert ranks.stopped == [1, 1]


def test_nobody_is_asked():
    ranks = Ranks(2, (0.001, 0.001), steps=50)
    ranks.run()
    assert ranks.stopped == [None, None]
    assert ranks.store.values == {}


def test_a_single_process_stops_at_once():
    asked = []
    alone = StopAgreement(lambda: bool(asked))
    alone.begin(0)
    assert not alone.after(1)
    asked.append(True)
    assert alone.after(2)


def test_ranks_that_answer_one_after_another_too_late_do_not_part(monkeypatch):
    """Rank 2 answers 0.4 s after the proposal, rank 3 0.8 s: too late for 0.5 s in all, so that none stops."""
    monkeypatch.setattr(stop_agreement, "_ANSWERS_SECONDS", 0.5)
    store, stops = Store(), {}
    ranks = [StopAgreement(lambda: True, rank, 4, store) for rank in range(4)]

    def train(rank, late):
        time.sleep(late)
        ranks[rank].begin(0)
        time.sleep(0.15)  # in step 1, while the thread answers
        stops[rank] = ranks[rank].after(1)

    threads = [threading.Thread(target=train, args=one) for one in enumerate((0, 0, 0.4, 0.8))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert stops == dict.fromkeys(range(4), False)
    assert [rank.failed for rank in ranks] == [True] * 4


def test_a_store_that_is_gone():
    """Nobody has asked for anything: the training goes on. Who asks later is not kept waiting for ever."""
    store, asked = Store(), []
    store.broken = True
    one = StopAgreement(lambda: bool(asked), 1, 2, store)
    one.begin(0)
    wait_for(lambda: one._deaf, 10)
    assert not one.after(1)
    assert not one.failed
    asked.append(True)
    assert not one.after(2)
    assert one.failed


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
