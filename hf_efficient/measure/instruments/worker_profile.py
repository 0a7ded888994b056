"""Profiles the workers of a data loader, each from its start to its end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path
from typing import Any

from hf_efficient.account.profile_files import table_path, write_table
from hf_efficient.measure.instruments.function_profilers import FunctionProfiler, function_profiler

__all__ = ["WorkerProfile"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerProfile:
    """A ``worker_init_fn`` around another one; it can be sent to processes that are spawned.

    Attributes:
        tool: ``cprofile`` or ``pyinstrument``.
        directory: each worker writes ``python.rank0.worker0...`` there when it ends.
        rank: of the training process.
        inner: the loader's own ``worker_init_fn``.
    """

    tool: str
    directory: Path
    rank: int
    inner: Callable[[int], Any] | None = None

    def __call__(self, worker: int) -> None:
        """In the worker, before its first batch."""
        if self.inner is not None:
            self.inner(worker)
        try:
            profiler = function_profiler(self.tool)
            profiler.start()
            # Workers end without atexit; multiprocessing calls this.
            util.Finalize(None, self._write, args=(profiler, worker), exitpriority=1)
        except Exception:
            logger.warning("Worker %d is not profiled, because of a fault; it works on.", worker, exc_info=True)

    def _write(self, profiler: FunctionProfiler, worker: int) -> None:
        try:
            table = table_path(self.directory, "python", self.rank, f"worker{worker}")
            found, _ = profiler.stop(table.with_suffix(""), f"worker {worker}")
            write_table(table, found)
        except Exception:
            logger.warning("The profile of worker %d could not be written.", worker, exc_info=True)
