"""In a worker of the loader: its batches are counted in memory that it shares with the process that trains."""

from __future__ import annotations

import logging
from collections.abc import Callable
from multiprocessing.sharedctypes import RawArray
from typing import Any, cast

from hf_efficient.measure.loader.counts import COUNTS
from hf_efficient.measure.loader.fetching import WatchedFetcher

__all__ = ["WatchedStart", "doubles_of", "shared_counts"]

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
