"""The host's memory at its peak, by the lines of named functions, by memray.

memray sees every allocation of the process, of torch's tensors too, which are no objects of Python that ``tracemalloc``
would count; and it keeps sums, so that its file stays small however long the run.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hf_efficient.account.code_place import code_place
from hf_efficient.account.profile_files import table_path, write_table
from hf_efficient.measure.instruments.after_steps import AFTER_STEPS, AfterSteps
from hf_efficient.measure.instruments.instrument import Place
from hf_efficient.records import HostMemoryLine, HostMemoryTable

__all__ = ["HostMemory"]


class HostMemory(AfterSteps):
    """Writes ``host_memory.rank0.bin``, which ``memray flamegraph`` shows, and ``host_memory.rank0.json``."""

    name = "host_memory"

    def __init__(self, functions: Sequence[Callable[..., Any]], after_step: int = AFTER_STEPS) -> None:
        """Nothing is watched before ``start``.

        Args:
            functions: written in Python.
            after_step: optimizer steps that go by before, in this training.
        """
        super().__init__(after_step)
        self._codes = {(function.__code__.co_filename, function.__code__.co_name) for function in functions}
        self._tracker: Any = None

    def begin(self, place: Place) -> None:
        """From here on."""
        from memray import FileDestination, FileFormat, Tracker

        path = _file(place)
        destination = FileDestination(str(path), overwrite=True)
        tracker = Tracker(destination=destination, file_format=FileFormat.AGGREGATED_ALLOCATIONS)
        # memray 1.20 loses a frame of this thread's stack for each that returns after its tracker was entered in it;
        # entered from another thread, it reads the stack as it is.
        with ThreadPoolExecutor(1) as another:
            another.submit(tracker.__enter__).result()
        self._tracker = tracker
        self.files.append(path)

    def finish(self, place: Place) -> None:
        """Write the lines that held something at the peak."""
        from memray import FileReader

        self._tracker.__exit__(None, None, None)
        self._tracker = None
        reader = FileReader(str(_file(place)))
        table = self._table(reader.get_high_watermark_allocation_records(merge_threads=True))
        path = table_path(place.directory, "host_memory", place.rank)
        write_table(path, table)
        self.files.append(path)
        if not table.lines:
            self.notes.append("the named functions held nothing at the peak")

    def _table(self, records: Any) -> HostMemoryTable:
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
        ordered = sorted(sums.items(), key=lambda line: -line[1][0])
        lines = [
            HostMemoryLine(code_place(*place), linecache.getline(place[0], place[1]).strip(), held[0], held[1])
            for place, held in ordered
        ]
        return HostMemoryTable(peak, lines)


def _file(place: Place) -> Path:
    return place.directory / f"host_memory.rank{place.rank}.bin"
