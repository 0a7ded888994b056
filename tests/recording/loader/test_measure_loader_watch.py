"""A loader that is watched: the same batches as without, and what they cost; workers as well."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import random
import time
from array import array

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from hf_efficient.recording import loader as interception
from hf_efficient.recording.loader import (
    COUNTS,
    LoaderMark,
    LoaderWatch,
    Taken,
    loader_facts,
    step_loader,
    watch_stated,
)
from hf_efficient.records.steps import StepLoader

NAP_SECONDS = 0.02
NOTHING = (0.0,) * len(COUNTS)


class Rows(Dataset):
    """Rows with random numbers of all three generators; a nap for each."""

    def __init__(self, count=8, nap_seconds=0.0):
        self.count, self.nap_seconds = count, nap_seconds

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.nap_seconds)
        return torch.tensor([float(index), torch.rand(()).item(), random.random()])


class RowsAtOnce(Rows):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Stream(IterableDataset):
    def __iter__(self):
        yield from (torch.tensor([float(number)]) for number in range(5))


def slow_collate(rows):
    time.sleep(NAP_SECONDS)
    return {"rows": torch.stack(rows)}


def loader_of(data, **settings):
    if "sampler" not in settings and not isinstance(data, IterableDataset):
        settings["sampler"] = RandomSampler(data, generator=torch.Generator().manual_seed(5))
    return DataLoader(data, batch_size=2, **settings)


def watched(loader):
    watch = LoaderWatch()
    watch.watch(loader)
    return watch


def row(value):
    """The counts of a process, as they lie in memory, all of them the same."""
    return bytes(array("d", [value] * len(COUNTS)))


def told(watch):
    return step_loader(LoaderMark(Taken(), NOTHING, bytes(72)), watch.mark())


@pytest.fixture(autouse=True)
def torch_is_left_as_it_was():
    method = vars(DataLoader)["_get_iterator"]
    yield
    assert vars(DataLoader)["_get_iterator"] is method
    assert not interception._replaced


@pytest.mark.parametrize("data", [Rows(), RowsAtOnce(), Stream()], ids=["items", "getitems", "stream"])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_and_random_numbers_are_the_same(data, workers):
    """The rows draw in the workers, the sampler draws here; what is drawn afterwards shows that nothing else was."""

    def run(watch):
        torch.manual_seed(1)
        random.seed(2)
        loader = loader_of(data, num_workers=workers)
        if watch is not None:
            watch.watch(loader)
        batches = [batch for _ in range(2) for batch in loader]
        return batches, torch.rand(3), random.random()

    watch = LoaderWatch()
    ours, plain = run(watch), run(None)
    seen = told(watch)
    watch.close()
    assert len(ours[0]) == len(plain[0])
    assert all(torch.equal(a, b) for a, b in zip(ours[0], plain[0], strict=True))
    assert torch.equal(ours[1], plain[1])
    assert ours[2] == plain[2]
    assert (seen.batches, seen.fetched) == (len(plain[0]),) * 2


@pytest.mark.parametrize("workers", [0, 2])
def test_naps_of_the_data_set_and_of_the_collator_are_told_apart(workers):
    loader = loader_of(Rows(nap_seconds=NAP_SECONDS), num_workers=workers, collate_fn=slow_collate)
    watch = watched(loader)
    for _ in loader:
        pass
    seen = told(watch)
    watch.close()
    assert seen.fetch_seconds >= 8 * NAP_SECONDS
    assert 4 * NAP_SECONDS <= seen.collate_seconds < 8 * NAP_SECONDS
    assert seen.fetch_cpu_seconds < seen.fetch_seconds / 2
    assert (seen.batches, seen.rows, seen.bytes) == (4, 8, 8 * 3 * 4)
    assert (seen.ready is None) == (workers == 0)


@pytest.mark.parametrize("persist", [False, True])
def test_epochs_of_workers_are_one_account(persist):
    loader = loader_of(Rows(), num_workers=2, persistent_workers=persist)
    watch = watched(loader)
    for _ in range(3):
        assert len(list(loader)) == 4
    seen = told(watch)
    watch.close()
    assert (seen.batches, seen.fetched, seen.rows) == (12, 12, 24)
    assert seen.start_seconds > 0
    assert 0 < seen.first_wait_seconds < seen.wait_seconds


def test_batches_that_wait_are_counted_when_one_is_asked_for():
    loader = loader_of(Rows(count=4), num_workers=1, prefetch_factor=2)
    watch = watched(loader)
    batches = iter(loader)
    while watch._counts[0] < 2:
        time.sleep(0.01)
    next(batches)
    first = told(watch).ready
    next(batches)
    both = told(watch).ready
    watch.close()
    assert (first, both) == (2, 3)


def test_an_iterator_that_is_left_ends_its_workers_at_once():
    loader = loader_of(Rows(), num_workers=1)
    watch = watched(loader)
    gc.disable()
    try:
        batches = iter(loader)
        next(batches)
        (worker,) = batches._workers
        del batches
        assert not worker.is_alive()
    finally:
        gc.enable()
        watch.close()


def test_other_loaders_are_left_alone():
    ours, other = loader_of(Rows()), loader_of(Rows())
    watch = watched(ours)
    list(other)
    assert told(watch).batches == 0
    assert len(list(copy.deepcopy(ours))) == len(list(pickle.loads(pickle.dumps(ours)))) == 4
    watch.close()


def test_an_error_of_the_data_set_reaches_the_training():
    class Broken(Rows):
        def __getitem__(self, index):
            raise KeyError(index)

    watch = watched(loader := loader_of(Broken()))
    with pytest.raises(KeyError):
        next(iter(loader))
    watch.close()


def test_a_fault_of_the_watch_is_told_once_and_the_batches_come(caplog, monkeypatch):
    watch = watched(loader := loader_of(Rows()))
    monkeypatch.setattr(Taken, "add", lambda self, batch: 1 / 0)
    with caplog.at_level(logging.WARNING, logger="hf_efficient"):
        assert len(list(loader)) == 4
    assert len(caplog.records) == 1
    assert watch.mark() is None
    watch.close()


def test_what_is_no_loader_of_torch_is_named_as_missing():
    stated = {}
    watch_stated(LoaderWatch(), [1, 2, 3], stated.update)
    assert stated["missing"][0]["what"] == "what the data loader's time goes to"


def test_facts_of_a_loader():
    stated = {}
    watch = LoaderWatch()
    watch_stated(watch, loader := loader_of(Rows(), num_workers=2, collate_fn=slow_collate), stated.update)
    next(iter(loader))
    watch.close()
    known = {name: stated[name] for name in ("workers", "prefetch_factor", "persistent_workers", "batches", "rows")}
    assert known == {"workers": 2, "prefetch_factor": 2, "persistent_workers": False, "batches": 4, "rows": 8}
    assert stated["collator"].endswith(".slow_collate")
    assert stated["first_batch"] == {"rows": {"bytes": 24, "shape": [2, 3], "dtype": "float32", "pinned": False}}


def test_a_collator_inside_another_is_the_one_that_is_named():
    """As transformers wraps it, to leave out columns."""

    class LeavesOut:
        data_collator = staticmethod(slow_collate)

    assert loader_facts(loader_of(Rows(), collate_fn=LeavesOut()))["collator"].endswith(".slow_collate")


def test_what_came_between_two_marks():
    before = LoaderMark(Taken(1, 2.0, 4, 100, 0.5, 0.0, 1.0, 3), (1.0, *[0.25] * 7, 10.0), row(1.0))
    after = LoaderMark(Taken(3, 5.0, 8, 300, 0.5, 0.125, 1.0, 7), (4.0, *[1.0] * 7, 30.0), row(0.0) + row(2.0))
    assert step_loader(before, after) == StepLoader(
        batches=2,
        wait_seconds=3.0,
        rows=4,
        bytes=200,
        fetched=4,
        fetch_seconds=1.75,
        fetch_cpu_seconds=1.75,
        fetch_process_cpu_seconds=1.75,
        collate_seconds=1.75,
        collate_cpu_seconds=1.75,
        collate_process_cpu_seconds=1.75,
        core_wait_seconds=1.75,
        read_bytes=21,
        end_seconds=0.125,
        ready=4,
    )
