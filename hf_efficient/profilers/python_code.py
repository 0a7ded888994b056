"""Where Python's own time and memory go: functions of the training thread and of loader workers, lines, host memory."""

import cProfile
import linecache
import logging
import pstats
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path
from typing import Any

from hf_efficient.accounting.memory_history import code_place
from hf_efficient.profilers.instrument import AFTER_STEPS, Place, WindowedInstrument
from hf_efficient.recording.loader import torch_loader
from hf_efficient.records import profile
from hf_efficient.run_dir.json_file import strict_json, table_path, write_whole

logger = logging.getLogger(__name__)

_MOST_FUNCTIONS = 50


class PythonProfile(WindowedInstrument):
    """Writes ``python.rank0.pstats``, by cProfile, and the dearest functions as JSON; the same for each worker, from
    its start. ``after_step`` steps of this training go by before."""

    name = "python"

    def __init__(self, after_step: int = AFTER_STEPS, workers: bool = True) -> None:
        super().__init__(after_step)
        self._workers = workers
        self._wrapped: _WorkerProfile | None = None

    def start(self, place: Place) -> None:
        for old in place.directory.glob(f"python.rank{place.rank}.*"):
            old.unlink()  # else a worker would add to what one of an earlier training wrote
        self._loader = torch_loader(place.loader)
        if self._workers and getattr(self._loader, "num_workers", 0) > 0:
            self._wrapped = _WorkerProfile(place.directory, place.rank, self._loader.worker_init_fn)
            self._loader.worker_init_fn = self._wrapped
        super().start(place)

    def begin(self, place: Place) -> None:
        self._profiler = cProfile.Profile()
        self._profiler.enable()

    def finish(self, place: Place) -> None:
        path = table_path(place.directory, "python", place.rank).with_suffix(".pstats")
        self.files.append(path)
        self.write(place, "python", _ended(self._profiler, path, "main"))

    def stop(self) -> None:
        place, wrapped, self._wrapped = self._place, self._wrapped, None
        super().stop()
        if place is None or wrapped is None:
            return
        if self._loader.worker_init_fn is wrapped:
            self._loader.worker_init_fn = wrapped.inner
        self.files += sorted(place.directory.glob(f"python.rank{place.rank}.worker*"))


@dataclass(frozen=True)
class _WorkerProfile:
    """A ``worker_init_fn`` around the loader's own, also if spawned; writes ``python.rank0.worker0...`` at its end."""

    directory: Path
    rank: int
    inner: Callable[[int], Any] | None = None

    def __call__(self, worker: int) -> None:
        if self.inner is not None:
            self.inner(worker)
        try:
            profiler = cProfile.Profile()
            profiler.enable()
            # Workers end without atexit; multiprocessing calls this.
            util.Finalize(None, self._write, args=(profiler, worker), exitpriority=1)
        except Exception:
            logger.warning("Worker %d is not profiled, because of a fault; it works on.", worker, exc_info=True)

    def _write(self, profiler: cProfile.Profile, worker: int) -> None:
        try:
            table = table_path(self.directory, "python", self.rank, f"worker{worker}")
            found = _ended(profiler, table.with_suffix(".pstats"), f"worker {worker}")
            write_whole(table, strict_json(found))
        except Exception:
            logger.warning("The profile of worker %d could not be written.", worker, exc_info=True)


def _ended(profiler: cProfile.Profile, path: Path, process: str) -> profile.FunctionTable:
    """Writes ``path``, where a worker of the epoch before may have written its own, which is added."""
    profiler.disable()
    stats = pstats.Stats(profiler)
    if path.exists():
        stats.add(str(path))
    stats.dump_stats(path)
    held: dict[tuple[str, int, str], tuple[int, int, float, float, Any]] = stats.stats  # type: ignore[attr-defined]
    functions = [
        profile.FunctionTime(code_place(*place), self_seconds, total_seconds, calls)
        for place, (_, calls, self_seconds, total_seconds, _) in held.items()
    ]
    ordered = sorted(functions, key=lambda function: (-function.self_seconds, function.place))
    seconds = sum(function.self_seconds for function in functions)
    left_out = max(0, len(ordered) - _MOST_FUNCTIONS)
    return profile.FunctionTable(process, "cprofile", seconds, ordered[:_MOST_FUNCTIONS], left_out)


class LineTimes(WindowedInstrument):
    """Functions timed line by line, by line_profiler: ``lines.rank0.json``; sees the thread that trains."""

    name = "lines"

    def __init__(self, functions: Sequence[Callable[..., Any]], after_step: int = AFTER_STEPS) -> None:
        super().__init__(after_step)
        self._functions = list(functions)
        self._profiler: Any = None

    def begin(self, place: Place) -> None:
        from line_profiler import LineProfiler

        self._profiler = LineProfiler(*self._functions)
        self._profiler.enable()

    def finish(self, place: Place) -> None:
        self._profiler.disable()
        stats = self._profiler.get_stats()
        self._profiler = None
        functions = [_lines(of, timings, stats.unit) for of, timings in stats.timings.items() if timings]
        self.write(place, "lines", profile.LineTable(sorted(functions, key=lambda function: -function.seconds)))
        silent = sorted(of[2] for of, timings in stats.timings.items() if not timings)
        if silent:
            self.notes.append(f"never called on the thread that trains: {', '.join(silent)}")


def _lines(place: tuple[str, int, str], timings: Sequence[tuple[int, int, int]], unit: float) -> profile.FunctionLines:
    file, first, name = place
    text = {line: linecache.getline(file, line).rstrip() for line, _, _ in timings}
    lines = [profile.CodeLine(line, text[line], hits, ticks * unit) for line, hits, ticks in timings]
    return profile.FunctionLines(code_place(file, first, name), sum(line.seconds for line in lines), lines)


class HostMemory(WindowedInstrument):
    """The host's memory at its peak by the lines of functions, by memray: ``host_memory.rank0.bin`` and ``.json``.
    memray sees torch's tensors too, unlike ``tracemalloc``, and keeps sums, so that its file stays small."""

    name = "host_memory"

    def __init__(self, functions: Sequence[Callable[..., Any]], after_step: int = AFTER_STEPS) -> None:
        super().__init__(after_step)
        self._codes = {(function.__code__.co_filename, function.__code__.co_name) for function in functions}
        self._tracker: Any = None

    def begin(self, place: Place) -> None:
        from memray import FileDestination, FileFormat, Tracker

        path = _memray_file(place)
        destination = FileDestination(str(path), overwrite=True)
        tracker = Tracker(destination=destination, file_format=FileFormat.AGGREGATED_ALLOCATIONS)
        # memray 1.20 loses a frame of this thread's stack for each that returns after its tracker was entered in it.
        # Entered from another thread, it reads the stack as it is.
        with ThreadPoolExecutor(1) as another:
            another.submit(tracker.__enter__).result()
        self._tracker = tracker
        self.files.append(path)

    def finish(self, place: Place) -> None:
        from memray import FileReader

        self._tracker.__exit__(None, None, None)
        self._tracker = None
        reader = FileReader(str(_memray_file(place)))
        table = self._table(reader.get_high_watermark_allocation_records(merge_threads=True))
        self.write(place, "host_memory", table)
        if not table.lines:
            self.notes.append("the named functions held nothing at the peak")

    def _table(self, records: Any) -> profile.HostMemoryTable:
        sums: dict[tuple[str, int, str], list[int]] = {}
        peak = 0
        for record in records:
            peak += record.size
            # The frame nearest to the allocation, should one of the functions call another.
            frame = next((f for f in record.stack_trace() if (f[1], f[0]) in self._codes), None)
            if frame is not None:
                held = sums.setdefault((frame[1], frame[2], frame[0]), [0, 0])
                held[0] += record.size
                held[1] += record.n_allocations
        lines = [
            profile.HostMemoryLine(code_place(*place), linecache.getline(place[0], place[1]).strip(), *held)
            for place, held in sorted(sums.items(), key=lambda line: -line[1][0])
        ]
        return profile.HostMemoryTable(peak, lines)


def _memray_file(place: Place) -> Path:
    return place.directory / f"host_memory.rank{place.rank}.bin"
