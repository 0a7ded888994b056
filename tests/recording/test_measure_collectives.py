"""Collectives that Python calls, and how long the thread that trains is in them."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
import torch.distributed as dist

from hf_efficient.recording.ranks import CollectiveWatch


class Told:
    """The phase: how often it was entered, and whether it is open."""

    def __init__(self):
        self.times, self.open = 0, False

    @contextmanager
    def phase(self):
        self.times, self.open = self.times + 1, True
        yield
        self.open = False


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def watch(told, monkeypatch):
    monkeypatch.setattr(dist, "all_reduce", lambda *args, **kwargs: (told.open, args, kwargs))
    monkeypatch.setattr(dist, "barrier", lambda: dist.all_reduce("inside"))
    watch = CollectiveWatch(told.phase)
    yield watch
    watch.remove()


def test_the_phase_is_open_in_a_collective_and_only_there(watch, told):
    before = dist.all_reduce
    assert dist.all_reduce(1)[0] is False
    watch.install()
    assert dist.all_reduce(1, op="sum") == (True, (1,), {"op": "sum"})
    assert told.open is False
    watch.remove()
    assert dist.all_reduce is before
    assert dist.all_reduce(1)[0] is False
    assert told.times == 1


def test_a_collective_inside_another_one_opens_no_second_phase(watch, told):
    watch.install()
    watch.install()
    assert dist.barrier()[0] is True
    assert told.times == 1


def test_another_threads_collectives_are_its_own(watch, told):
    watch.install()
    seen = []
    thread = threading.Thread(target=lambda: seen.append(dist.all_reduce(1)[0]))
    thread.start()
    thread.join()
    assert seen == [False]
    assert told.times == 0


def test_what_somebody_else_has_put_there_since_stays(watch, monkeypatch):
    watch.install()

    def theirs():
        return "theirs"

    monkeypatch.setattr(dist, "all_reduce", theirs)
    watch.remove()
    assert dist.all_reduce is theirs


def test_an_error_goes_on_and_the_next_collective_is_told(watch, told, monkeypatch):
    def fails():
        raise RuntimeError("connection lost")

    monkeypatch.setattr(dist, "broadcast", fails)
    watch.install()
    with pytest.raises(RuntimeError, match="connection lost"):
        dist.broadcast()
    dist.all_reduce(1)
    assert told.times == 2
