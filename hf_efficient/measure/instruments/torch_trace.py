"""The torch profiler on a schedule: a trace per rank and cycle, and the table of the dearest operators."""

from __future__ import annotations

import dataclasses
import gzip
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hf_efficient.account.profile_files import table_path, write_table
from hf_efficient.measure.instruments.instrument import Instrument, Place
from hf_efficient.measure.instruments.operator_sums import OperatorSums

__all__ = ["TorchTrace", "TraceSchedule"]

_MOST_OPERATORS = 100
_PACKING = 3  # of 9, which takes nine times as long for a file a quarter smaller (a trace of 38 MB)
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class TraceSchedule:
    """Which optimizer steps are traced, and how much of them; the keys of ``efficiency.profile.trace``.

    Attributes:
        wait: steps that go by before each cycle.
        warmup: steps traced and thrown away.
        active: steps that are kept.
        repeat: how many cycles, from 1.
        shapes: of the operators' inputs.
        stacks: Python's calls, with file and line.
        memory: every allocation.
        flops: of matrix products and convolutions; needs shapes.

    Raises:
        ValueError: a count is too small.
    """

    wait: int = 5
    warmup: int = 1
    active: int = 3
    repeat: int = 1
    shapes: bool = True
    stacks: bool = True
    memory: bool = False
    flops: bool = True

    def __post_init__(self) -> None:
        for name, least in (("wait", 0), ("warmup", 0), ("active", 1), ("repeat", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; write at least {least}")

    @property
    def cycle(self) -> int:
        """Steps of one cycle."""
        return self.wait + self.warmup + self.active


class TorchTrace(Instrument):
    """Writes ``trace.rank0.cycle0.pt.trace.json.gz``, for Perfetto and TensorBoard, and ``operators.rank0.json``.

    A step begins and ends where its optimizer step ends, so that what follows a step, a log or an evaluation, is traced
    with the next one.
    """

    name = "trace"

    def __init__(self, schedule: TraceSchedule | None = None) -> None:
        """Nothing is traced before ``start``."""
        super().__init__()
        self.schedule = schedule or TraceSchedule()
        self._profiler: Any = None
        self._place: Place | None = None
        self._sums = OperatorSums()
        self._done = 0

    def start(self, place: Place) -> None:
        """The profiler begins with its wait."""
        self._place, self._sums, self._done = place, OperatorSums(), 0
        told = self.schedule
        options = {"wait": told.wait, "warmup": told.warmup, "active": told.active, "repeat": told.repeat}
        self._profiler = torch.profiler.profile(
            schedule=torch.profiler.schedule(**options),
            on_trace_ready=self._write,
            record_shapes=told.shapes,
            with_stack=told.stacks,
            profile_memory=told.memory,
            with_flops=told.flops,
        )
        self._quietly(self._profiler.start)
        self.active = self._is_under(0)

    def step_ends(self, step: int) -> None:
        """On to the next step of the schedule; at the end of a cycle its trace is written."""
        if self._profiler is None:
            return
        self._done += 1
        self._quietly(self._profiler.step)
        self.active = self._is_under(self._done)
        if self._done == self.schedule.cycle * self.schedule.repeat:
            self.stop()

    def stop(self) -> None:
        """End it; a cycle that is under way is written as far as it came."""
        profiler, self._profiler, self.active = self._profiler, None, False
        if profiler is None:
            return
        kept = self._done % self.schedule.cycle - self.schedule.wait - self.schedule.warmup
        if self._done < self.schedule.cycle * self.schedule.repeat and kept >= 0:
            self.notes.append(f"training ended after {kept} of the {self.schedule.active} steps of a cycle")
        elif not self.files:
            first = self.schedule.wait + self.schedule.warmup + 1
            self.notes.append(f"training ended after {self._done} steps, before the first that is kept, step {first}")
        self._quietly(profiler.stop)

    def _is_under(self, done: int) -> bool:
        cycle, place = divmod(done, self.schedule.cycle)
        return cycle < self.schedule.repeat and place >= self.schedule.wait

    def _write(self, profiler: Any) -> None:
        if self._place is None:
            return
        path = _free_path(self._place.directory, self._place.rank)
        _export(profiler, path)
        self.files.append(path)
        self._sums.add(profiler.profiler.kineto_results.events())
        table = table_path(self._place.directory, "operators", self._place.rank)
        found = self._sums.table(self._place.rank, _MOST_OPERATORS)
        if not self.schedule.flops:
            found = dataclasses.replace(found, operators=[dataclasses.replace(o, flops=None) for o in found.operators])
        write_table(table, found)
        if table not in self.files:
            self.files.append(table)

    @staticmethod
    def _quietly(method: Any) -> None:
        with warnings.catch_warnings():
            # Each cycle's events are read before the next one clears them.
            warnings.filterwarnings("ignore", message=".*Profiler clears events.*")
            method()


def _export(profiler: Any, path: Path) -> None:
    """Packed in large pieces: torch itself would pack a trace line by line, in Python."""
    plain = path.with_suffix("")
    try:
        profiler.export_chrome_trace(str(plain))
        with plain.open("rb") as source, gzip.open(path, "wb", compresslevel=_PACKING) as packed:
            shutil.copyfileobj(source, packed, _PIECE_BYTES)
    finally:
        plain.unlink(missing_ok=True)


def _free_path(directory: Path, rank: int) -> Path:
    """The first cycle that has no trace yet: a run that goes on keeps the traces that it has."""
    cycle = 0
    while True:
        # The ending by which TensorBoard's profiler plugin knows a trace.
        path = directory / f"trace.rank{rank}.cycle{cycle}.pt.trace.json.gz"
        if not path.exists():
            return path
        cycle += 1
