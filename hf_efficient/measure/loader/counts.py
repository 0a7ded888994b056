"""What one process has loaded so far, as doubles in a row: its own memory, or that of a worker shared with it."""

from __future__ import annotations

import time
from collections.abc import Callable

from hf_efficient.measure.core_wait import core_wait_seconds

__all__ = ["COUNTS", "BatchTimes", "counts_in"]

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


def _clocks() -> tuple[float, float, float]:
    """Seconds: wall, CPU of this thread, CPU of its process. (``getrusage`` tells a running thread's to the tick.)"""
    return time.perf_counter(), time.thread_time(), time.process_time()


def _disk_reads() -> Callable[[], int]:
    """Tells the blocks that this thread has had the disk read; nothing where the system does not tell."""
    try:
        from resource import RUSAGE_THREAD, getrusage
    except ImportError:
        return lambda: 0
    return lambda: getrusage(RUSAGE_THREAD).ru_inblock


class BatchTimes:
    """Adds the batches that a process loads to its counts, one after the other, in one thread."""

    def __init__(
        self,
        counts: memoryview[float],
        clocks: Callable[[], tuple[float, float, float]] = _clocks,
        blocks: Callable[[], int] | None = None,
        core_wait: Callable[[], float] = core_wait_seconds,
    ) -> None:
        """Nothing is added yet.

        Args:
            counts: as many doubles as ``COUNTS`` has names, written in place.
            clocks: read for every part of a batch.
            blocks: of 512 bytes, that the disk was read for the thread.
            core_wait: seconds that the thread has waited for a core.
        """
        self._counts, self._clocks, self._core_wait = counts, clocks, core_wait
        self._blocks = blocks or _disk_reads()
        self._blocks_before, self._waited_before = 0, 0.0
        self._began = (0.0, 0.0, 0.0)
        self._collating = False

    def fetch_begins(self) -> None:
        """The data set is asked for the rows of a batch."""
        self._collating = False
        self._blocks_before, self._waited_before = self._blocks(), self._core_wait()
        self._began = self._clocks()

    def collate_begins(self) -> None:
        """The rows are there."""
        self._fetched()
        self._collating = True

    def ends(self) -> None:
        """The batch is there, or what was begun has failed."""
        if self._collating:
            self._add(_COLLATE)
        else:
            self._fetched()
        self._counts[_WAIT] += self._core_wait() - self._waited_before
        if self._collating:
            self._counts[0] += 1.0  # last: who reads meanwhile sees no batch without its time

    def _fetched(self) -> None:
        self._add(_FETCH)
        self._counts[_READ] += (self._blocks() - self._blocks_before) * _BLOCK_BYTES

    def _add(self, at: int) -> None:
        counts = self._counts
        wall, thread, process = self._began
        self._began = now = self._clocks()
        counts[at] += now[0] - wall
        counts[at + 1] += now[1] - thread
        counts[at + 2] += now[2] - process


def counts_in(raw: bytes) -> tuple[float, ...]:
    """The sums over the processes whose counts lie in ``raw`` one after the other."""
    values = memoryview(raw).cast("d")
    return tuple(sum(values[at :: len(COUNTS)]) for at in range(len(COUNTS)))
