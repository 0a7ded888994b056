"""Where Python's own time goes, in the thread that trains and in the data loader's workers."""

from __future__ import annotations

from typing import Any

from hf_efficient.account.profile_files import table_path, write_table
from hf_efficient.measure.instruments.after_steps import AFTER_STEPS, AfterSteps
from hf_efficient.measure.instruments.function_profilers import FunctionProfiler, function_profiler
from hf_efficient.measure.instruments.instrument import Place
from hf_efficient.measure.instruments.worker_profile import WorkerProfile
from hf_efficient.measure.loader.watch import torch_loader

__all__ = ["PythonProfile"]


class PythonProfile(AfterSteps):
    """Writes ``python.rank0.pstats`` or ``.html``, and the dearest functions as JSON; the same for each worker."""

    name = "python"

    def __init__(self, tool: str = "cprofile", after_step: int = AFTER_STEPS, workers: bool = True) -> None:
        """Nothing is profiled before ``start``.

        Args:
            tool: ``cprofile`` or ``pyinstrument``.
            after_step: optimizer steps that go by before, in this training.
            workers: profile those of the loader too, from their start.

        Raises:
            ValueError: there is no such tool, or a negative step.
        """
        super().__init__(after_step)
        if tool not in ("cprofile", "pyinstrument"):
            raise ValueError(f"tool is {tool!r}; write cprofile or pyinstrument")
        self._tool, self._workers = tool, workers
        self._profiler: FunctionProfiler | None = None
        self._wrapped: WorkerProfile | None = None
        self._loader: Any = None

    def start(self, place: Place) -> None:
        """Workers that start from here on are profiled."""
        for old in place.directory.glob(f"python.rank{place.rank}.*"):
            old.unlink()  # else a worker would add to what one of an earlier training wrote
        self._loader = torch_loader(place.loader)
        if self._workers and getattr(self._loader, "num_workers", 0) > 0:
            self._wrapped = WorkerProfile(self._tool, place.directory, place.rank, self._loader.worker_init_fn)
            self._loader.worker_init_fn = self._wrapped
        super().start(place)

    def begin(self, place: Place) -> None:
        """From here on."""
        self._profiler = function_profiler(self._tool)
        self._profiler.start()

    def finish(self, place: Place) -> None:
        """Write the thread's own functions."""
        if self._profiler is None:
            return
        table = table_path(place.directory, "python", place.rank)
        found, files = self._profiler.stop(table.with_suffix(""), "main")
        self._profiler = None
        write_table(table, found)
        self.files += [*files, table]

    def stop(self) -> None:
        """Write; list what the workers have written by now, and leave the loader as it was."""
        place, wrapped, self._wrapped = self._place, self._wrapped, None
        super().stop()
        if place is None or wrapped is None:
            return
        if self._loader.worker_init_fn is wrapped:
            self._loader.worker_init_fn = wrapped.inner
        self.files += sorted(place.directory.glob(f"python.rank{place.rank}.worker*"))
