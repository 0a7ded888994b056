"""A loader that is watched: the same batches as without, and what they cost; workers as well."""

import copy
import gc
import logging
import pickle
import random
import time
from array import array
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from hf_efficient.recording import loader as watching
from hf_efficient.records.steps import StepLoader

NAP_SECONDS = 0.02
NOTHING = (0.0,) * len(watching.COUNTS)


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
    watch = watching.LoaderWatch()
    watch.watch(loader)
    return watch


def row(value):
    """The counts of a process, as they lie in memory, all of them the same."""
    return bytes(array("d", [value] * len(watching.COUNTS)))


def told(watch):
    return watching.step_loader(watching.LoaderMark(watching.Taken(), NOTHING, bytes(72)), watch.mark())


@pytest.fixture(autouse=True)
def torch_is_left_as_it_was():
    method = vars(DataLoader)["_get_iterator"]
    yield
    assert vars(DataLoader)["_get_iterator"] is method


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

    watch = watching.LoaderWatch()
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
    watch = watched(loader := loader_of(Rows(nap_seconds="long")))
    with pytest.raises(TypeError):
        next(iter(loader))
    watch.close()


def test_a_fault_of_the_watch_is_told_once_and_the_batches_come(caplog, monkeypatch):
    watch = watched(loader := loader_of(Rows()))
    monkeypatch.setattr(watching.Taken, "add", lambda self, batch: 1 / 0)
    with caplog.at_level(logging.WARNING, logger="hf_efficient"):
        assert len(list(loader)) == 4
    assert len(caplog.records) == 1
    assert watch.mark() is None
    watch.close()


def test_what_is_no_loader_of_torch_is_named_as_missing():
    stated = {}
    watching.watch_stated(watching.LoaderWatch(), [1, 2, 3], stated.update)
    assert stated["missing"][0]["what"] == "what the data loader's time goes to"


def test_facts_of_a_loader():
    stated = {}
    watch = watching.LoaderWatch()
    watching.watch_stated(watch, loader := loader_of(Rows(), num_workers=2, collate_fn=slow_collate), stated.update)
    next(iter(loader))
    watch.close()
    known = {name: stated[name] for name in ("workers", "prefetch_factor", "persistent_workers", "rows")}
    assert known == {"workers": 2, "prefetch_factor": 2, "persistent_workers": False, "rows": 8}
    assert stated["collator"].endswith(".slow_collate")
    inside = SimpleNamespace(data_collator=slow_collate)  # as transformers wraps it, to leave out columns
    assert watching.loader_facts(loader_of(Rows(), collate_fn=inside))["collator"].endswith(".slow_collate")
    assert stated["first_batch"] == {"rows": {"pinned": False}}


def test_what_came_between_two_marks():
    first, second = watching.Taken(1, 2.0, 4, 100, 0.5, 0.0, 1.0, 3), watching.Taken(3, 5.0, 8, 300, 0.5, 0.125, 1.0, 7)
    before = watching.LoaderMark(first, (1.0, *[0.25] * 7, 10.0), row(1.0))
    after = watching.LoaderMark(second, (4.0, *[1.0] * 7, 30.0), row(0.0) + row(2.0))
    seconds = ("fetch", "fetch_cpu", "fetch_process_cpu", "collate", "collate_cpu", "collate_process_cpu", "core_wait")
    taken = {"batches": 2, "wait_seconds": 3.0, "rows": 4, "bytes": 200, "end_seconds": 0.125, "ready": 4}
    loaded = {"fetched": 4, "read_bytes": 21, **{f"{name}_seconds": 1.75 for name in seconds}}
    assert watching.step_loader(before, after) == StepLoader(**taken, **loaded)


def counted(readings, waits=((0.0, 0),) * 2):
    """A row of counts, and what adds to it by clocks that give these readings one after the other."""
    row = array("d", [0.0] * len(watching.COUNTS))
    clocks = tuple(iter(of_one).__next__ for of_one in zip(*readings, strict=True))
    return row, watching.BatchTimes(memoryview(row), clocks, iter(waits).__next__)


def load(times):
    times.fetch_begins()
    times.collate_begins()
    times.ends()


def test_a_batch_by_hand():
    row, times = counted([(10.0, 1.0, 2.0), (13.0, 1.5, 4.0), (14.0, 2.25, 6.0)], waits=[(0.5, 512), (0.75, 1536)])
    load(times)
    assert dict(zip(watching.COUNTS, row, strict=True)) == {
        "fetched": 1.0,
        "fetch_seconds": 3.0,
        "fetch_cpu_seconds": 0.5,
        "fetch_process_cpu_seconds": 2.0,
        "collate_seconds": 1.0,
        "collate_cpu_seconds": 0.75,
        "collate_process_cpu_seconds": 2.0,
        "core_wait_seconds": 0.25,
        "read_bytes": 1024.0,
    }


def test_short_batches_are_timed_in_full_one_in_seven_and_long_ones_all():
    """Batches of 1 ms, of which 0.25 ms is on the CPU; then one of 5 ms, after which all are timed for a while."""
    row, at, took = array("d", [0.0] * len(watching.COUNTS)), [0.0], 0.001
    read = []

    def thread():
        read.append(at[0])
        return at[0] / 4

    times = watching.BatchTimes(memoryview(row), (lambda: at[0], thread, lambda: at[0] / 2), lambda: (at[0] / 8, 0))

    def batch(seconds):
        times.fetch_begins()
        at[0] += seconds
        times.collate_begins()
        times.ends()

    for _ in range(32 + 7 * 10):
        batch(took)
    assert len(read) == 3 * (32 + 10)
    found = dict(zip(watching.COUNTS, row, strict=True))
    assert found["fetched"] == 102
    assert found["collate_seconds"] == 0
    shares = {"": 1, "_cpu": 1 / 4, "_process_cpu": 1 / 2}
    for name, share in shares.items():
        assert found[f"fetch{name}_seconds"] == pytest.approx(102 * took * share)
    assert found["core_wait_seconds"] == pytest.approx(102 * took / 8)
    batch(0.005)
    read.clear()
    batch(took)
    assert len(read) == 3


def test_a_fetch_or_a_collator_that_fails():
    row, times = counted([(1.0, 0.0, 0.0), (3.0, 0.5, 0.5)])
    times.fetch_begins()
    times.ends()
    assert list(row)[:4] == [0.0, 2.0, 0.5, 0.5]  # time, and no batch
    row, times = counted([(1.0, 0.0, 0.0), (2.0, 0.0, 0.0), (5.0, 0.0, 0.0)])
    load(times)
    assert (row[watching.COUNTS.index("fetch_seconds")], row[watching.COUNTS.index("collate_seconds")]) == (1.0, 3.0)
