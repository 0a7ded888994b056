"""The loader of a training: what its batches cost, step by step, without touching one of them."""

from __future__ import annotations

import functools
import logging
import time
import weakref
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from hf_efficient.measure.loader.counts import COUNTS, counts_in
from hf_efficient.measure.loader.fetching import WatchedFetcher
from hf_efficient.measure.loader.interception import MakesIterator, let_go, look_at_iterators
from hf_efficient.measure.loader.marks import LoaderMark
from hf_efficient.measure.loader.taken import Taken
from hf_efficient.measure.loader.workers import WatchedStart, doubles_of, shared_counts

__all__ = ["LoaderWatch", "torch_loader"]

logger = logging.getLogger(__name__)


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
