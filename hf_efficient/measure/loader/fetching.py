"""Around the fetcher that torch gives a loader's process: what the data set takes, and what the collator takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hf_efficient.measure.loader.counts import BatchTimes

__all__ = ["WatchedFetcher"]


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
