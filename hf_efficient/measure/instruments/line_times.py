"""Named functions timed line by line, by line_profiler."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from typing import Any

from hf_efficient.account.code_place import code_place
from hf_efficient.account.profile_files import table_path, write_table
from hf_efficient.measure.instruments.after_steps import AFTER_STEPS, AfterSteps
from hf_efficient.measure.instruments.instrument import Place
from hf_efficient.records import CodeLine, FunctionLines, LineTable

__all__ = ["LineTimes"]


class LineTimes(AfterSteps):
    """Writes ``lines.rank0.json``; sees the thread that trains."""

    name = "lines"

    def __init__(self, functions: Sequence[Callable[..., Any]], after_step: int = AFTER_STEPS) -> None:
        """Nothing is timed before ``start``.

        Args:
            functions: written in Python.
            after_step: optimizer steps that go by before, in this training.
        """
        super().__init__(after_step)
        self._functions = list(functions)
        self._profiler: Any = None

    def begin(self, place: Place) -> None:
        """From here on."""
        from line_profiler import LineProfiler

        self._profiler = LineProfiler(*self._functions)
        self._profiler.enable()

    def finish(self, place: Place) -> None:
        """Write the lines that ran."""
        self._profiler.disable()
        stats = self._profiler.get_stats()
        self._profiler = None
        functions = [_function(place_of, timings, stats.unit) for place_of, timings in stats.timings.items() if timings]
        path = table_path(place.directory, "lines", place.rank)
        write_table(path, LineTable(sorted(functions, key=lambda function: -function.seconds)))
        self.files.append(path)
        silent = sorted(place_of[2] for place_of, timings in stats.timings.items() if not timings)
        if silent:
            self.notes.append(f"never called on the thread that trains: {', '.join(silent)}")


def _function(place: tuple[str, int, str], timings: Sequence[tuple[int, int, int]], unit: float) -> FunctionLines:
    file, first, name = place
    lines = [
        CodeLine(line, linecache.getline(file, line).rstrip(), hits, ticks * unit) for line, hits, ticks in timings
    ]
    return FunctionLines(code_place(file, first, name), sum(line.seconds for line in lines), lines)
