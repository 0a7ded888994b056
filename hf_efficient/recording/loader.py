"""The data loader of a training watched from inside: what its time goes to, here and in its workers.

What one process has loaded so far, as doubles in a row: its own memory, or that of a worker shared with it.

What the process that trains takes from its loader: how long it waited, and what it was given.

Around the fetcher that torch gives a loader's process: what the data set takes, and what the collator takes.

Where torch's loader makes its iterators, with somebody who may look at them.

The method of the class is replaced rather than one of a loader, so that a loader can be copied and pickled as before,
and so that one that accelerate derives from it, to go on in the middle of an epoch, is found as well.

In a worker of the loader: its batches are counted in memory that it shares with the process that trains.

What the loader did between two readings of its sums.

The loader of a training: what its batches cost, step by step, without touching one of them.

What a loader is, and what its first batch looks like: facts of topic ``loader``.
"""

from __future__ import annotations

import functools
import logging
import time
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.sharedctypes import RawArray
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import msgspec
import torch
from torch.utils.data import IterableDataset

from hf_efficient.recording.clocks import core_wait_seconds
from hf_efficient.records.steps import StepLoader

COUNTS = (
    "fetched",
    "fetch_seconds",
    "fetch_cpu_seconds",
    "fetch_process_cpu_seconds",
    "collate_seconds",
    "collate_cpu_seconds",
    "collate_process_cpu_seconds",
    "core_wait_seconds",
    "read_bytes",
)
"""The doubles, in their order: batches, then seconds (see ``StepLoader``), then bytes."""

_FETCH, _COLLATE = COUNTS.index("fetch_seconds"), COUNTS.index("collate_seconds")
_WAIT, _READ = COUNTS.index("core_wait_seconds"), COUNTS.index("read_bytes")
_BLOCK_BYTES = 512  # of ru_inblock, getrusage(2)
WORTH_A_LOOK_SECONDS = 0.001
_LOOKS = 16  # batches that are looked at after one that was worth it


_CLOCKS = (time.perf_counter, time.thread_time, time.process_time)
"""Seconds: wall, CPU of this thread, CPU of its process. (``getrusage`` tells a running thread's to the tick.)"""


def _waits() -> Callable[[], tuple[float, int]]:
    """Tells what this thread has waited for; nothing of the disk where the system does not tell."""
    try:
        from resource import RUSAGE_THREAD, getrusage
    except ImportError:
        return lambda: (core_wait_seconds(), 0)
    return lambda: (core_wait_seconds(), getrusage(RUSAGE_THREAD).ru_inblock * _BLOCK_BYTES)


class BatchTimes:
    """Adds the batches that a process loads to its counts, one after the other, in one thread.

    What a loader waits for, the disk or a core, is asked for of sixteen batches after one that took longer than
    ``WORTH_A_LOOK_SECONDS``: with small ones that would be half of what the watch costs.
    """

    def __init__(
        self,
        counts: memoryview[float],
        clocks: tuple[Callable[[], float], Callable[[], float], Callable[[], float]] = _CLOCKS,
        waits: Callable[[], tuple[float, int]] | None = None,
    ) -> None:
        """Nothing is added yet.

        Args:
            counts: as many doubles as ``COUNTS`` has names, written in place.
            clocks: read for every part of a batch.
            waits: seconds that the thread has waited for a core, and bytes that the disk was read for it.
        """
        self._counts = counts
        self._wall, self._thread, self._process = clocks
        self._waits = waits or _waits()
        self._waited: tuple[float, int] | None = None
        self._looks = 0
        self._began = self._collated = (0.0, 0.0, 0.0)
        self._is_collated = False

    def fetch_begins(self) -> None:
        """The data set is asked for the rows of a batch."""
        self._is_collated = False
        if self._looks:
            self._looks -= 1
            self._waited = self._waits()
        self._began = self._wall(), self._thread(), self._process()

    def collate_begins(self) -> None:
        """The rows are there."""
        self._is_collated = True
        self._collated = self._wall(), self._thread(), self._process()

    def ends(self) -> None:
        """The batch is there, or what was begun has failed."""
        wall, thread, process = self._wall(), self._thread(), self._process()
        counts = self._counts
        wall_from, thread_from, process_from = began = self._began
        if self._is_collated:
            wall_from, thread_from, process_from = collated = self._collated
            counts[_FETCH] += collated[0] - began[0]
            counts[_FETCH + 1] += collated[1] - began[1]
            counts[_FETCH + 2] += collated[2] - began[2]
        part = _COLLATE if self._is_collated else _FETCH
        counts[part] += wall - wall_from
        counts[part + 1] += thread - thread_from
        counts[part + 2] += process - process_from
        if wall - began[0] > WORTH_A_LOOK_SECONDS:
            self._looks = _LOOKS
        if self._waited is not None:
            (core, read), now, self._waited = self._waited, self._waits(), None
            counts[_WAIT] += now[0] - core
            counts[_READ] += now[1] - read
        if self._is_collated:
            counts[0] += 1.0  # last: who reads meanwhile sees no batch without its time


def counts_in(raw: bytes) -> Sequence[float]:
    """The sums over the processes whose counts lie in ``raw`` one after the other."""
    values, names = memoryview(raw).cast("d"), len(COUNTS)
    if len(values) == names:  # no workers, or one
        return values.tolist()
    return [sum(values[at::names]) for at in range(names)]


class Taken(msgspec.Struct):
    """Sums since the training began. (A struct, since it is copied in every step.)

    Attributes:
        batches: taken.
        wait_seconds: host time until they were there, with the sampler and pinning.
        rows: of them, first dimensions; None where one told none.
        bytes: of their tensors.
        start_seconds: making the iterators of the epochs, with the start of their workers.
        end_seconds: ending the epochs: workers that do not persist are joined.
        first_wait_seconds: of ``wait_seconds``, that for the first batch of each epoch.
        ready: batches that workers had ready when one was asked for, summed over the askings; None without workers.
    """

    batches: int = 0
    wait_seconds: float = 0.0
    rows: int | None = 0
    bytes: int = 0
    start_seconds: float = 0.0
    end_seconds: float = 0.0
    first_wait_seconds: float = 0.0
    ready: int | None = None

    def add(self, batch: Any) -> None:
        """Count the batch's rows and bytes."""
        rows: int | None = None
        for value in _values(batch):
            if isinstance(value, torch.Tensor):
                self.bytes += value.nbytes
                if rows is None and value.ndim:
                    rows = value.shape[0]
        self.batches += 1
        self.rows = None if self.rows is None or rows is None else self.rows + rows


def batch_tensors(batch: Any) -> list[torch.Tensor]:
    """The tensors of a batch as collators make them: one, or a mapping or sequence of them."""
    return [value for value in _values(batch) if isinstance(value, torch.Tensor)]


def _values(batch: Any) -> Iterable[Any]:
    if isinstance(batch, (dict, Mapping)):  # a dict's check is the cheap one
        return batch.values()
    return batch if isinstance(batch, (list, tuple)) else (batch,)


class _WatchedCollate:
    """Called with the rows of a batch; what it returns, and what it raises, is the collator's own."""

    __slots__ = ("_collate", "_times")

    def __init__(self, collate: Callable[[Any], Any], times: BatchTimes) -> None:
        self._collate, self._times = collate, times

    def __call__(self, rows: Any) -> Any:
        self._times.collate_begins()
        return self._collate(rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collate, name)


class WatchedFetcher:
    """Stands in for ``torch.utils.data._utils.fetch._BaseDatasetFetcher`` in one process."""

    def __init__(self, fetcher: Any, counts: memoryview[float]) -> None:
        """Put the clock around the fetcher's collator too.

        Args:
            fetcher: of torch, not used by anyone else.
            counts: of the process (see ``BatchTimes``).
        """
        self._fetcher, self._times = fetcher, BatchTimes(counts)
        fetcher.collate_fn = _WatchedCollate(fetcher.collate_fn, self._times)

    def fetch(self, index: Any) -> Any:
        """The batch of these indices."""
        self._times.fetch_begins()
        try:
            return self._fetcher.fetch(index)
        finally:
            self._times.ends()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fetcher, name)


MakesIterator = Callable[[Any], Any]
Watcher = Callable[[Any, MakesIterator], Any]
"""Given a loader and what makes its iterator, returns that iterator."""

_METHOD = "_get_iterator"
_watchers: list[Watcher] = []
_replaced: dict[type, MakesIterator] = {}


def look_at_iterators(loader: Any, watcher: Watcher) -> None:
    """From here on ``watcher`` makes the iterators of every loader of this kind, until ``let_go``.

    Raises:
        TypeError: it is no loader of torch's.
    """
    owner = next((kind for kind in type(loader).__mro__ if _METHOD in vars(kind)), None)
    if owner is None:
        raise TypeError(f"a {type(loader).__name__} makes its batches in a way of its own")
    if owner not in _replaced:
        _replaced[owner] = vars(owner)[_METHOD]
        setattr(owner, _METHOD, _watched(_replaced[owner]))
    _watchers.append(watcher)


def let_go(watcher: Watcher) -> None:
    """The opposite; with the last one torch's own methods are back."""
    if watcher in _watchers:
        _watchers.remove(watcher)
    if not _watchers:
        for owner, method in _replaced.items():
            setattr(owner, _METHOD, method)
        _replaced.clear()


def _watched(make: MakesIterator) -> MakesIterator:
    @functools.wraps(make)
    def made(loader: Any) -> Any:
        maker = make
        for watcher in _watchers:
            maker = functools.partial(_through, watcher, maker)
        return maker(loader)

    return made


def _through(watcher: Watcher, make: MakesIterator, loader: Any) -> Any:
    return watcher(loader, make)


logger = logging.getLogger(__name__)


def shared_counts(workers: int) -> Any:
    """Doubles that the workers of a loader write, each its own row of ``COUNTS``; passed on by fork, spawn and others.

    Raises:
        OSError: the system has no shared memory left.
    """
    return RawArray("d", workers * len(COUNTS))


def doubles_of(shared: Any) -> memoryview[float]:
    """The same memory, read and written as floats."""
    return cast("memoryview[float]", memoryview(shared).cast("B").cast("d"))


class WatchedStart:
    """Takes the place of a loader's ``worker_init_fn``: called in each worker before it fetches."""

    def __init__(self, start: Callable[[int], Any] | None, counts: Any) -> None:
        """Nothing happens in the process that trains.

        Args:
            start: the loader's own.
            counts: of all workers, from ``shared_counts``.
        """
        self._start, self._counts = start, counts

    def __call__(self, worker: int) -> None:
        if self._start is not None:
            self._start(worker)
        try:
            _watch_fetchers(doubles_of(self._counts)[worker * len(COUNTS) :][: len(COUNTS)])
        except Exception:
            logger.warning("What this data loader worker does is not measured, because of a fault.", exc_info=True)


def _watch_fetchers(counts: memoryview[float]) -> None:
    """The process belongs to one loader; it makes a fetcher when it starts, and one per epoch where it persists."""
    from torch.utils.data import _DatasetKind

    make = _DatasetKind.create_fetcher

    def watched(*args: Any, **kwargs: Any) -> Any:
        return WatchedFetcher(make(*args, **kwargs), counts)

    _DatasetKind.create_fetcher = staticmethod(watched)  # type: ignore[method-assign]


class LoaderMark(msgspec.Struct, frozen=True):
    """Where the sums stood.

    Attributes:
        taken: by the process that trains.
        before: what iterators that are gone have loaded, by ``COUNTS``.
        raw: the counts of the one that is not, as they lie in memory.
    """

    taken: Taken
    before: tuple[float, ...]
    raw: bytes


def step_loader(since: LoaderMark, until: LoaderMark) -> StepLoader:
    """What came between two marks, to the tenth of a microsecond."""
    taken, earlier = until.taken, since.taken
    ends = zip(until.before, counts_in(until.raw), since.before, counts_in(since.raw), strict=True)
    sums = (round(gone + here - gone_then - here_then, 7) for gone, here, gone_then, here_then in ends)
    fetched, *seconds, read = sums
    return StepLoader(
        batches=taken.batches - earlier.batches,
        wait_seconds=round(taken.wait_seconds - earlier.wait_seconds, 7),
        rows=None if taken.rows is None or earlier.rows is None else taken.rows - earlier.rows,
        bytes=taken.bytes - earlier.bytes,
        start_seconds=round(taken.start_seconds - earlier.start_seconds, 7),
        end_seconds=round(taken.end_seconds - earlier.end_seconds, 7),
        first_wait_seconds=round(taken.first_wait_seconds - earlier.first_wait_seconds, 7),
        ready=None if taken.ready is None else taken.ready - (earlier.ready or 0),
        fetched=int(fetched),
        read_bytes=int(read),
        **dict(zip(COUNTS[1:-1], seconds, strict=True)),
    )


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _never_raises(
    method: Callable[Concatenate[LoaderWatch, _P], _R],
) -> Callable[Concatenate[LoaderWatch, _P], _R | None]:
    """Does nothing while nothing is watched; a fault is logged once, and ends the watch."""

    @functools.wraps(method)
    def guarded(self: LoaderWatch, *args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        if self._loader is None:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception:  # noqa: BLE001  it is told of there
            self._fault()
            return None

    return guarded


def torch_loader(loader: Any) -> Any:
    """The ``DataLoader`` of torch inside what accelerate made of it."""
    return getattr(loader, "base_dataloader", loader)


class LoaderWatch:
    """Watches one loader, from ``watch`` to ``close``; a fault of its own is logged once and ends the watch."""

    def __init__(self) -> None:
        """Nothing is watched yet."""
        self._loader: Any = None
        self._first_batch: Callable[[Any], None] | None = None
        self._forget()

    def watch(self, loader: Any, first_batch: Callable[[Any], None] | None = None) -> None:
        """Watch this one, and no longer the one before.

        Args:
            loader: of torch, also as accelerate wraps it.
            first_batch: called with the first batch, as the loader made it.

        Raises:
            TypeError: it is no loader of torch's.
        """
        self.close()
        inner = torch_loader(loader)
        look_at_iterators(inner, self._iterator)
        self._loader, self._first_batch = inner, first_batch

    def close(self) -> None:
        """Torch's own methods are back."""
        let_go(self._iterator)
        self._loader = None
        self._forget()

    def mark(self) -> LoaderMark | None:
        """Where the sums stand; None while nothing is watched."""
        if self._loader is None:
            return None
        return LoaderMark(msgspec.structs.replace(self._taken), self._before, bytes(self._counts))

    def next_data(self, reference: weakref.ref[Any]) -> Any:
        """The next batch of an iterator, of which its own class knows; for the iterator.

        Called in every step: what it does is in one piece, and caught once.
        """
        iterator: Any = reference()
        if self._taken.ready is not None:
            self._look_at_ready()
        asked_ns = time.perf_counter_ns()
        try:
            batch = type(iterator)._next_data(iterator)
        except StopIteration:
            self._ended(asked_ns)
            raise
        if self._loader is not None:
            try:
                self._gives(batch, (time.perf_counter_ns() - asked_ns) / 1e9)
            except Exception:  # noqa: BLE001  it is told of there
                self._fault()
        return batch

    def reset(self, iterator: Any, *args: Any, **kwargs: Any) -> None:
        """Start workers that persist on another epoch; for the iterator."""
        began = time.perf_counter_ns()
        type(iterator)._reset(iterator, *args, **kwargs)
        self._started(began)

    def _forget(self) -> None:
        self._taken = Taken()
        self._before = (0.0,) * len(COUNTS)
        self._counts: memoryview[float] = memoryview(array("d", self._before))
        self._handed_out = 0  # batches of the iterator that ``_counts`` belong to
        self._ready = 0
        self._is_first = False

    def _iterator(self, loader: Any, make: MakesIterator) -> Any:
        """For ``look_at_iterators``."""
        shared = self._counts_for(loader) if self._is_ours(loader) else None
        if shared is None:
            return make(loader)
        began = time.perf_counter_ns()
        if loader.num_workers:
            with _started_by(loader, shared):
                iterator = make(loader)
        else:
            iterator = make(loader)
        self._attend(iterator, loader.num_workers > 0)
        self._started(began)
        return iterator

    def _is_ours(self, loader: Any) -> bool:
        """Also what ``accelerate.skip_first_batches`` makes of it, for the rest of an epoch."""
        ours = self._loader
        if ours is None or loader is ours:
            return ours is not None
        start = loader.worker_init_fn
        return start is not None and start is ours.worker_init_fn and loader.dataset is ours.dataset

    @_never_raises
    def _counts_for(self, loader: Any) -> Any:
        """Counts for an iterator that is about to be made; those of the one before are added up."""
        loaded = counts_in(bytes(self._counts))
        shared = shared_counts(max(1, loader.num_workers))
        self._before = tuple(map(sum, zip(self._before, loaded, strict=True)))
        self._counts, self._handed_out = doubles_of(shared), 0
        return shared

    @_never_raises
    def _attend(self, iterator: Any, has_workers: bool) -> None:
        """The iterator holds the watch, and the watch no iterator: the workers of one that is left must end at once."""
        if has_workers:
            iterator._reset = functools.partial(_reset, weakref.ref(iterator), self)
            self._taken.ready = self._taken.ready or 0
        else:
            iterator._dataset_fetcher = WatchedFetcher(iterator._dataset_fetcher, self._counts)
        iterator._next_data = functools.partial(self.next_data, weakref.ref(iterator))

    @_never_raises
    def _started(self, began_ns: int) -> None:
        self._taken.start_seconds += (time.perf_counter_ns() - began_ns) / 1e9
        self._is_first = True

    @_never_raises
    def _look_at_ready(self) -> None:
        self._ready = max(0, int(sum(self._counts[:: len(COUNTS)])) - self._handed_out)

    @_never_raises
    def _ended(self, asked_ns: int) -> None:
        self._taken.end_seconds += (time.perf_counter_ns() - asked_ns) / 1e9

    def _gives(self, batch: Any, seconds: float) -> None:
        self._taken.wait_seconds += seconds
        if self._is_first:
            self._taken.first_wait_seconds += seconds
            self._is_first = False
        self._handed_out += 1
        if self._taken.ready is not None:
            self._taken.ready += self._ready
        self._taken.add(batch)
        if self._first_batch is not None:
            told, self._first_batch = self._first_batch, None
            told(batch)

    def _fault(self) -> None:
        self._loader = None
        let_go(self._iterator)
        logger.warning("The data loader is no longer watched, because of a fault; training goes on.", exc_info=True)


def _reset(iterator: weakref.ref[Any], watch: LoaderWatch, *args: Any, **kwargs: Any) -> None:
    watch.reset(iterator(), *args, **kwargs)


@contextmanager
def _started_by(loader: Any, counts: Any) -> Iterator[None]:
    """Workers that start now count their batches."""
    start = loader.worker_init_fn
    loader.worker_init_fn = WatchedStart(start, counts)
    try:
        yield
    finally:
        loader.worker_init_fn = start


def loader_facts(loader: Any) -> dict[str, Any]:
    """Of a loader of torch, also as accelerate wraps it; what it does not tell is left out.

    ``workers``, ``prefetch_factor`` (batches per worker), ``persistent_workers``, ``pin_memory`` (as it was asked for),
    ``pins_memory`` (whether torch does it: it needs an accelerator), ``in_order``, ``start_method`` (of the workers),
    ``batch_size`` (rows), ``drop_last``, ``batches`` (per epoch), ``rows`` (of the data set), ``iterable``, and the
    kinds of ``loader``, ``dataset``, ``collator`` and ``sampler``.
    """
    inner = torch_loader(loader)
    workers = int(inner.num_workers)
    context = inner.multiprocessing_context or torch.multiprocessing.get_context()
    facts = {
        "loader": type(loader).__name__,
        "dataset": _kind(inner.dataset),
        "collator": _kind(getattr(inner.collate_fn, "data_collator", inner.collate_fn)),  # inside transformers' own
        "sampler": None if isinstance(inner.dataset, IterableDataset) else _kind(inner.sampler),
        "iterable": isinstance(inner.dataset, IterableDataset),
        "rows": _length(inner.dataset),
        "batches": _length(loader),
        "batch_size": getattr(inner.batch_sampler, "batch_size", inner.batch_size),
        "drop_last": bool(inner.drop_last),
        "workers": workers,
        "prefetch_factor": inner.prefetch_factor,
        "persistent_workers": bool(inner.persistent_workers),
        "pin_memory": bool(inner.pin_memory),
        "pins_memory": bool(inner.pin_memory and torch.accelerator.is_available()),
        "in_order": getattr(inner, "in_order", None),
        "start_method": context.get_start_method() if workers else None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def batch_facts(batch: Any) -> dict[str, Any]:
    """Of a batch as the loader made it: ``first_batch``: by place, bytes, shape, dtype, and whether it is pinned."""
    tensors = batch_tensors(batch)
    names: Iterable[Any] = range(len(tensors))
    if isinstance(batch, Mapping):
        names = [name for name, value in batch.items() if isinstance(value, torch.Tensor)]
    told = {
        str(name): {
            "bytes": tensor.nbytes,
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "pinned": tensor.is_pinned() if tensor.is_cpu and torch.accelerator.is_available() else False,
        }
        for name, tensor in zip(names, tensors, strict=True)
    }
    return {"first_batch": told}


def watch_stated(watch: LoaderWatch, loader: Any, state: Callable[[Mapping[str, Any]], None]) -> None:
    """Watch a loader and state its facts; one that cannot be watched is told of once, and training goes on.

    Args:
        watch: of the training.
        loader: of it.
        state: takes facts of topic ``loader``.
    """
    try:
        state(loader_facts(loader))
        watch.watch(loader, lambda batch: state(batch_facts(batch)))
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        logger.info("The data loader is not watched (%s).", why, exc_info=True)
        state({"missing": [{"what": "what the data loader's time goes to", "why": f"it cannot be watched: {why}"}]})


def _kind(thing: Any) -> str:
    """``list``, ``datasets.arrow_dataset.Dataset``, ``my_module.collate``."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    module = str(getattr(named, "__module__", "builtins"))
    return str(named.__qualname__) if module == "builtins" else f"{module}.{named.__qualname__}"


def _length(thing: Any) -> int | None:
    try:
        return len(thing)
    except (TypeError, NotImplementedError):
        return None
