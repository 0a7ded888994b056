"""The data loader of a training watched from inside: what its time goes to, here and in its workers."""

from __future__ import annotations

import functools
import logging
import math
import resource
import time
import weakref
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.sharedctypes import RawArray
from typing import Any, cast

import msgspec
import torch
from torch.utils.data import IterableDataset

from hf_efficient.recording.guard import guard
from hf_efficient.recording.meters import core_wait_seconds
from hf_efficient.records.steps import StepLoader

logger = logging.getLogger(__name__)

COUNTS = (
    "fetched", "fetch_seconds", "fetch_cpu_seconds", "fetch_process_cpu_seconds", "collate_seconds",
    "collate_cpu_seconds", "collate_process_cpu_seconds", "core_wait_seconds", "read_bytes",
)  # fmt: skip
"""What one process has loaded so far, as doubles in a row: batches, then seconds (see ``StepLoader``), then bytes."""

_FETCH, _COLLATE = COUNTS.index("fetch_seconds"), COUNTS.index("collate_seconds")
_WAIT, _READ = COUNTS.index("core_wait_seconds"), COUNTS.index("read_bytes")
_BLOCK_BYTES = 512  # of ru_inblock, getrusage(2)
_OF_THIS_THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)  # Linux
_CLOCKS = (time.perf_counter, time.thread_time, time.process_time)
"""Seconds: wall, CPU of this thread, CPU of its process. (``getrusage`` has a running thread's to the tick.)"""
_SHORT_SECONDS, _ALL_OF, _EVERY = 0.002, 32, 7
"""A batch, how many are timed in full at first and after one that is not short, and of how many others one is."""
_GET_ITERATOR = "_get_iterator"


def _waits() -> tuple[float, int]:
    """What this thread has waited for a core, and what the disk was read for it, where the system knows."""
    blocks = 0 if _OF_THIS_THREAD is None else resource.getrusage(_OF_THIS_THREAD).ru_inblock
    return core_wait_seconds(), blocks * _BLOCK_BYTES


class BatchTimes:
    """Adds a process's batches to its counts, in one thread; of short ones, one in seven is timed, for all seven."""

    def __init__(
        self,
        counts: memoryview[float],
        clocks: tuple[Callable[[], float], Callable[[], float], Callable[[], float]] = _CLOCKS,
        waits: Callable[[], tuple[float, int]] = _waits,
    ) -> None:
        """``counts``: as many doubles as ``COUNTS`` has names, written in place."""
        self._counts, self._clocks, self._waits = counts, clocks, waits
        self._batches, self._all_until = 0, _ALL_OF
        self._weight = 1
        """For how many batches this one counts; 0: it is not timed."""

    def fetch_begins(self) -> None:
        self._batches += 1
        self._weight = 1 if self._batches <= self._all_until else 0 if self._batches % _EVERY else _EVERY
        self._part = _FETCH
        if self._weight:
            self._waited = self._waits()
            self._since = [clock() for clock in self._clocks]
            self._began = self._since[0]
        else:
            self._began = self._clocks[0]()

    def collate_begins(self) -> None:
        if self._weight:
            self._add()
        self._part = _COLLATE

    def ends(self) -> None:
        """The batch is there, or what was begun has failed."""
        if self._weight:
            self._add()
            core, read = self._waits()
            self._counts[_WAIT] += (core - self._waited[0]) * self._weight
            self._counts[_READ] += (read - self._waited[1]) * self._weight
        until = self._since[0] if self._weight else self._clocks[0]()
        if until - self._began >= _SHORT_SECONDS:
            self._all_until = self._batches + _ALL_OF
        if self._part == _COLLATE:
            self._counts[0] += 1.0  # last: who reads meanwhile sees no batch without its time

    def _add(self) -> None:
        now = [clock() for clock in self._clocks]
        for place, (since, until) in enumerate(zip(self._since, now, strict=True), start=self._part):
            self._counts[place] += (until - since) * self._weight
        self._since = now


def counts_in(raw: bytes) -> Sequence[float]:
    """The sums over the processes whose counts lie in ``raw`` one after the other."""
    values, names = memoryview(raw).cast("d"), len(COUNTS)
    return [sum(values[at::names]) for at in range(names)]


class WatchedFetcher:
    """Stands in for ``torch.utils.data._utils.fetch._BaseDatasetFetcher`` in one process."""

    def __init__(self, fetcher: Any, counts: memoryview[float]) -> None:
        self._fetcher = fetcher
        self._times = times = BatchTimes(counts)
        collate = fetcher.collate_fn

        def watched(rows: Any) -> Any:
            times.collate_begins()
            return collate(rows)

        fetcher.collate_fn = watched

    def fetch(self, index: Any) -> Any:
        self._times.fetch_begins()
        try:
            return self._fetcher.fetch(index)
        finally:
            self._times.ends()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fetcher, name)


def doubles_of(shared: Any) -> memoryview[float]:
    return cast("memoryview[float]", memoryview(shared).cast("B").cast("d"))


def _watched_start(start: Callable[[int], Any] | None, counts: Any, worker: int) -> None:
    """In place of a loader's ``worker_init_fn``: called in each worker before it fetches."""
    if start is not None:
        start(worker)
    try:
        _watch_fetchers(doubles_of(counts)[worker * len(COUNTS) :][: len(COUNTS)])
    except Exception:
        logger.warning("What this data loader worker does is not measured, because of a fault.", exc_info=True)


def _watch_fetchers(counts: memoryview[float]) -> None:
    """The process belongs to one loader; it makes a fetcher when it starts, and one per epoch where it persists."""
    from torch.utils.data import _DatasetKind

    make = _DatasetKind.create_fetcher

    def watched(*args: Any, **kwargs: Any) -> Any:
        return WatchedFetcher(make(*args, **kwargs), counts)

    _DatasetKind.create_fetcher = staticmethod(watched)  # type: ignore[method-assign]


class Taken(msgspec.Struct):
    """What the process that trains has taken from its loader since the training began; see ``StepLoader``."""

    batches: int = 0
    wait_seconds: float = 0.0
    rows: float = 0  # NaN: unknown of a batch, as ``ready`` without workers
    bytes: int = 0
    start_seconds: float = 0.0
    end_seconds: float = 0.0
    first_wait_seconds: float = 0.0
    ready: float = 0

    def add(self, batch: Any) -> None:
        """Count the batch's rows (first dimensions) and bytes."""
        rows = None
        for tensor in batch_tensors(batch):
            self.bytes += tensor.nbytes
            if rows is None and tensor.ndim:
                rows = tensor.shape[0]
        self.batches += 1
        self.rows += math.nan if rows is None else rows


def batch_tensors(batch: Any) -> list[torch.Tensor]:
    values: Iterable[Any] = batch if isinstance(batch, list | tuple) else (batch,)
    if isinstance(batch, Mapping):
        values = batch.values()
    return [value for value in values if isinstance(value, torch.Tensor)]


class LoaderMark(msgspec.Struct, frozen=True):
    """The sums: ``before`` of past iterators, by ``COUNTS``; ``raw`` of the current one."""

    taken: Taken
    before: tuple[float, ...]
    raw: bytes


def step_loader(since: LoaderMark, until: LoaderMark) -> StepLoader:
    """What the loader did between two marks, to the tenth of a microsecond."""
    sums: dict[str, Any] = {
        name: round(getattr(until.taken, name) - getattr(since.taken, name), 7) for name in Taken.__struct_fields__
    }
    ends = zip(COUNTS, until.before, counts_in(until.raw), since.before, counts_in(since.raw), strict=True)
    sums |= {name: round(gone + here - gone_then - here_then, 7) for name, gone, here, gone_then, here_then in ends}
    whole = {name: int(sums[name]) for name in ("fetched", "read_bytes")}
    return StepLoader(**{name: value for name, value in (sums | whole).items() if not math.isnan(value)})


def torch_loader(loader: Any) -> Any:
    """The ``DataLoader`` of torch inside what accelerate made of it."""
    return getattr(loader, "base_dataloader", loader)


_guarded = guard("The data loader is no longer watched", then=lambda watch: watch.let_go())


class LoaderWatch:
    """Watches one loader, from ``watch`` to ``close``, without touching one of its batches."""

    def __init__(self) -> None:
        self.broken = False
        self._loader: Any = None
        self._undo: Callable[[], None] = lambda: None
        self._first_batch: Callable[[Any], None] | None = None
        self._forget()

    def watch(self, loader: Any, first_batch: Callable[[Any], None] | None = None) -> None:
        """Watch this loader in place of the one before; ``first_batch`` gets its first batch. The class's method is
        replaced: loaders copy and pickle as before, and accelerate's are found. ``TypeError``: it is not torch's."""
        self.close()
        inner = torch_loader(loader)
        owner = next((kind for kind in type(inner).__mro__ if _GET_ITERATOR in vars(kind)), None)
        if owner is None:
            raise TypeError(f"a {type(inner).__name__} makes its batches in a way of its own")
        make = vars(owner)[_GET_ITERATOR]

        @functools.wraps(make)
        def watched(of: Any) -> Any:
            return self._iterator(of, make)

        def undo() -> None:
            if vars(owner)[_GET_ITERATOR] is watched:
                setattr(owner, _GET_ITERATOR, make)

        setattr(owner, _GET_ITERATOR, watched)
        self.broken, self._loader, self._first_batch, self._undo = False, inner, first_batch, undo
        self._taken.ready = 0 if inner.num_workers else math.nan

    def close(self) -> None:
        self.let_go()
        self._forget()

    def let_go(self) -> None:
        """Watch no longer; what was seen is kept."""
        self._undo()
        self._loader = None

    def mark(self) -> LoaderMark | None:
        """Where the sums stand; None while nothing is watched."""
        if self._loader is None:
            return None
        return LoaderMark(msgspec.structs.replace(self._taken), self._before, bytes(self._counts))

    def _next_data(self, reference: weakref.ref[Any]) -> Any:
        iterator: Any = reference()
        if not math.isnan(self._taken.ready):
            self._ready = max(0, int(sum(self._counts[:: len(COUNTS)])) - self._handed_out)
        asked_ns = time.perf_counter_ns()
        try:
            batch = type(iterator)._next_data(iterator)
        except StopIteration:
            self._taken.end_seconds += (time.perf_counter_ns() - asked_ns) / 1e9
            raise
        self._gives(batch, (time.perf_counter_ns() - asked_ns) / 1e9)
        return batch

    def _reset(self, reference: weakref.ref[Any], *args: Any, **kwargs: Any) -> None:
        iterator: Any = reference()
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

    def _iterator(self, loader: Any, make: Callable[[Any], Any]) -> Any:
        shared = self._counts_for(loader) if self._is_ours(loader) else None
        if shared is None:
            return make(loader)
        began, start = time.perf_counter_ns(), loader.worker_init_fn
        loader.worker_init_fn = functools.partial(_watched_start, start, shared)
        try:
            iterator = make(loader)
        finally:
            loader.worker_init_fn = start
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

    @_guarded
    def _counts_for(self, loader: Any) -> Any:
        loaded = counts_in(bytes(self._counts))
        shared = RawArray("d", max(1, loader.num_workers) * len(COUNTS))
        self._before = tuple(map(sum, zip(self._before, loaded, strict=True)))
        self._counts, self._handed_out = doubles_of(shared), 0
        return shared

    @_guarded
    def _attend(self, iterator: Any, has_workers: bool) -> None:
        reference = weakref.ref(iterator)
        if has_workers:
            iterator._reset = functools.partial(self._reset, reference)
        else:
            iterator._dataset_fetcher = WatchedFetcher(iterator._dataset_fetcher, self._counts)
        iterator._next_data = functools.partial(self._next_data, reference)

    def _started(self, began_ns: int) -> None:
        self._taken.start_seconds += (time.perf_counter_ns() - began_ns) / 1e9
        self._is_first = True

    @_guarded
    def _gives(self, batch: Any, seconds: float) -> None:
        if self._loader is None:
            return
        taken = self._taken
        taken.wait_seconds += seconds
        if self._is_first:
            taken.first_wait_seconds += seconds
            self._is_first = False
        self._handed_out += 1
        taken.ready += self._ready
        taken.add(batch)
        if self._first_batch is not None:
            report, self._first_batch = self._first_batch, None
            report(batch)


def watch_stated(watch: LoaderWatch, loader: Any, state: Callable[[Mapping[str, Any]], None]) -> None:
    """Watch a loader and state its facts; one that cannot be watched is logged once, and training continues."""
    try:
        state(loader_facts(loader))
        watch.watch(loader, lambda batch: state(batch_facts(batch)))
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        logger.info("The data loader is not watched (%s).", why, exc_info=True)
        state({"missing": [{"what": "what the data loader's time goes to", "why": f"it cannot be watched: {why}"}]})


def loader_facts(loader: Any) -> dict[str, Any]:
    """Facts of topic ``loader``; what is unknown is left out. ``rows``, ``columns``: of the data set."""
    inner = torch_loader(loader)
    facts = {
        "dataset": _kind(inner.dataset),
        "collator": _kind(getattr(inner.collate_fn, "data_collator", inner.collate_fn)),  # inside transformers' own
        "iterable": isinstance(inner.dataset, IterableDataset),
        "rows": _length(inner.dataset),
        "columns": getattr(inner.dataset, "column_names", None),
        "workers": int(inner.num_workers),
        "prefetch_factor": inner.prefetch_factor,
        "persistent_workers": bool(inner.persistent_workers),
        "pin_memory": bool(inner.pin_memory),
    }
    return {name: value for name, value in facts.items() if value is not None}


def batch_facts(batch: Any) -> dict[str, Any]:
    """Of a batch as the loader made it: ``first_batch``: by place, whether the tensor is pinned."""
    items: Iterable[tuple[Any, Any]] = batch.items() if isinstance(batch, Mapping) else enumerate(batch_tensors(batch))
    tensors = {str(name): one for name, one in items if isinstance(one, torch.Tensor)}
    can_pin = torch.accelerator.is_available()
    pinned = {name: {"pinned": bool(one.is_cpu and can_pin and one.is_pinned())} for name, one in tensors.items()}
    return {"first_batch": pinned}


def _kind(thing: Any) -> str:
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    module = str(getattr(named, "__module__", "builtins"))
    return str(named.__qualname__) if module == "builtins" else f"{module}.{named.__qualname__}"


def _length(thing: Any) -> int | None:
    try:
        return len(thing)
    except (TypeError, NotImplementedError):
        return None
