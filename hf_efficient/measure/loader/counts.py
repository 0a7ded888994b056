"""What one process has loaded so far, as doubles in a row: its own memory, or that of a worker shared with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hf_efficient.measure.core_wait import core_wait_seconds

__all__ = ["COUNTS", "WORTH_A_LOOK_SECONDS", "BatchTimes", "counts_in"]

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
