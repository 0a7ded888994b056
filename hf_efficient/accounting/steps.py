"""Records as columns: a row per record, exact sums over them, and their thinning for plots; and the step records of a
rank, added up by ``train()`` call: the one reader of ``steps.jsonl``."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import chain, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from hf_efficient.estimate.statistics import warm_up_count
from hf_efficient.records.steps import StepLoader, StepRecord
from hf_efficient.run_dir.jsonl import LineReader, Tail

Column = npt.NDArray[np.float64]

MOST_BUCKETS = 2000
"""More than a plot has columns of pixels."""

_C = TypeVar("_C", bound="Columns")


@dataclass(frozen=True)
class Columns:
    """Columns of equal length, each a field of its own or by name in one; NaN: not known. ``ABSENT`` says by field what
    a row holds under a name that its block of rows lacks, else NaN."""

    ABSENT: ClassVar[Mapping[str, float]] = {}

    def __getitem__(self: _C, rows: slice | npt.NDArray[Any]) -> _C:
        def cut(value: Any) -> Any:
            return {name: held[rows] for name, held in value.items()} if isinstance(value, dict) else value[rows]

        return type(self)(**{one.name: cut(getattr(self, one.name)) for one in fields(self)})

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))


def column(values: Sequence[Any]) -> Column:
    """Numbers; None becomes NaN, and the word ``nan`` or ``inf`` what it says."""
    return np.array(values, dtype=np.float64)


def table(parts: Sequence[Mapping[str, Any] | None], absent: float = 0.0) -> dict[str, Column]:
    """A column for every name that any part holds; a row without a part is NaN, one that lacks the name ``absent``."""
    names = dict.fromkeys(chain.from_iterable(filter(None, parts)))
    return {name: column([None if part is None else part.get(name, absent) for part in parts]) for name in names}


def joined(blocks: Sequence[_C]) -> _C:
    first = blocks[0]
    if len(blocks) == 1:
        return first

    def join(name: str) -> Any:
        parts = [getattr(block, name) for block in blocks]
        if not isinstance(parts[0], dict):
            return np.concatenate(parts)
        absent = [np.full(len(block), first.ABSENT.get(name, np.nan)) for block in blocks]
        return {
            key: np.concatenate([part.get(key, rest) for part, rest in zip(parts, absent, strict=True)])
            for key in dict.fromkeys(key for part in parts for key in part)
        }

    return type(first)(**{one.name: join(one.name) for one in fields(first)})


def nanoseconds(seconds: Column) -> int:
    """The sum of times, NaN left out, in the whole nanoseconds in which the clocks count: exact in any order."""
    return int(np.rint(np.nan_to_num(seconds) * 1e9).astype(np.int64).sum())


def total(counts: Column) -> int | None:
    """The sum of whole numbers, exact beyond 2**53 too; None where a row does not know it."""
    if np.isnan(counts).any():
        return None
    high = np.floor(counts / 2**32)
    return int(high.sum()) * 2**32 + int((counts - high * 2**32).sum())


def runs(groups: Column) -> Iterator[slice]:
    edges = np.flatnonzero(np.diff(groups)) + 1
    return (slice(int(start), int(end)) for start, end in pairwise((0, *edges, len(groups))) if end > start)


def bucket_starts(groups: Column) -> npt.NDArray[np.int64]:
    """The rows at which at most so many buckets of equal length, a power of two, begin; each group has its own."""
    held = list(runs(groups))
    width = 1
    while sum(-(-(one.stop - one.start) // width) for one in held) > max(MOST_BUCKETS, len(held)):
        width *= 2
    return np.concatenate([np.arange(one.start, one.stop, width) for one in held] or [np.zeros(0)]).astype(np.int64)


MOST_ROWS = 20_000
"""Of other ranks than the first, so many of the last steps are kept; the sums hold all."""

LOADER_SECONDS = tuple(name for name in StepLoader.__struct_fields__ if name.endswith("_seconds"))

_NAN = float("nan")
_COUNTS = ("processed", "non_padding", "target", "rows", "documents", "model_flops", "hardware_flops")


@dataclass(frozen=True)
class StepColumns(Columns):
    """Steps of one rank, a row per optimizer step, in the order written (see ``StepRecord``); NaN: not known. Peaks are
    of the device's allocated memory by phase; ``waited_seconds`` are waits for other ranks in opaque phases;
    ``not_finite`` counts logged losses and gradient norms."""

    segment: Column
    step: Column
    started_at_seconds: Column
    wall_seconds: Column
    phase_seconds: Mapping[str, Column]
    device_seconds: Mapping[str, Column]
    waited_seconds: Mapping[str, Column]
    held_seconds: Mapping[str, Column]
    cpu_seconds: Column
    micro_batches: Column
    processed: Column
    non_padding: Column
    target: Column
    rows: Column
    documents: Column
    shortest: Column
    longest: Column
    length_buckets: Mapping[str, Column]
    model_flops: Column
    hardware_flops: Column
    loader: Mapping[str, Column]
    loss: Column
    learning_rate: Column
    grad_norm: Column
    not_finite: Column
    preferences: Mapping[str, Column]
    peak_allocated_bytes: Column
    peak_reserved_bytes: Column
    allocation_retries: Column
    phase_peaks: Mapping[str, Column]

    ABSENT: ClassVar[Mapping[str, float]] = {"phase_seconds": 0.0, "held_seconds": 0.0}

    def phase(self, name: str) -> Column:
        return self.phase_seconds.get(name, np.zeros(len(self)))

    def own(self, name: str) -> Column:
        """Seconds of a phase, step by step, without those in which it is known that the rank waited for others."""
        waited = self.waited_seconds.get(name)
        return self.phase(name) if waited is None else self.phase(name) - np.nan_to_num(waited)

    @cached_property
    def step_seconds(self) -> Column:
        """Wall without evaluation and checkpointing."""
        return self.wall_seconds - (self.phase("evaluation") + self.phase("checkpointing"))

    @cached_property
    def compute_seconds(self) -> Column:
        """Forward, backward and what waits for the device in between."""
        return np.sum([self.phase(one) for one in ("forward", "backward", "device_wait", "forward_backward")], axis=0)

    @cached_property
    def steady(self) -> npt.NDArray[np.bool_]:
        """Which steps are not of the warm-up of their ``train()`` call."""
        found = np.ones(len(self), dtype=bool)
        for segment in np.unique(self.segment):
            places = np.flatnonzero(self.segment == segment)
            found[places[: warm_up_count(len(places))]] = False
        return found


def columns_of(lines: Sequence[StepRecord]) -> StepColumns:
    sequences = [line.sequences for line in lines]
    memory = [line.memory for line in lines]

    def figures(parts: Sequence[Any], *names: str) -> dict[str, Column]:
        reads = {name: attrgetter(name) for name in names}
        return {name: column([None if part is None else read(part) for part in parts]) for name, read in reads.items()}

    loader = figures([line.loader for line in lines], *StepLoader.__struct_fields__)
    return StepColumns(
        **figures(lines, "segment", "step", "started_at_seconds", "wall_seconds", "cpu_seconds", "micro_batches"),
        **figures(lines, "loss", "learning_rate", "grad_norm"),
        not_finite=column([isinstance(line.loss, str) + isinstance(line.grad_norm, str) for line in lines]),
        **figures([line.tokens for line in lines], "processed", "non_padding", "target"),
        **figures(sequences, "rows", "documents", "shortest", "longest"),
        **figures([line.work for line in lines], "model_flops", "hardware_flops"),
        **figures(memory, "peak_allocated_bytes", "peak_reserved_bytes", "allocation_retries"),
        preferences=table([line.preferences for line in lines], _NAN),
        phase_seconds=table([line.phase_seconds for line in lines]),
        device_seconds=table([line.device_seconds for line in lines]),
        waited_seconds=table([line.waited_seconds for line in lines]),
        held_seconds=table([line.held_seconds or {} for line in lines]),
        length_buckets=table([None if part is None else part.length_buckets for part in sequences]),
        phase_peaks=table([None if part is None else part.phase_peak_allocated_bytes for part in memory], _NAN),
        loader={name: held for name, held in loader.items() if not np.isnan(held).all()},
    )


@dataclass
class SegmentSteps:
    """Sums over the steps of one ``train()`` call on one rank; times in nanoseconds, lengths in tokens."""

    segment: int
    steps: int = 0
    first_step: int | None = None
    last_step: int | None = None
    first_ends_at_seconds: float = 0.0
    last_ends_at_seconds: float = 0.0
    wall_ns: int = 0
    phase_ns: Counter[str] = field(default_factory=Counter)
    device_steps: int = 0
    device_ns: Counter[str] = field(default_factory=Counter)
    waited_ns: Counter[str] = field(default_factory=Counter)
    held_ns: Counter[str] = field(default_factory=Counter)
    counts: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    shortest: float = _NAN
    longest: float = _NAN
    length_buckets: Counter[str] = field(default_factory=Counter)

    def add(self, steps: StepColumns) -> None:
        """At least one, in the order written."""
        ends = steps.started_at_seconds + steps.wall_seconds
        if not self.steps:
            self.first_step, self.first_ends_at_seconds = int(steps.step[0]), float(ends[0])
        self.last_step, self.last_ends_at_seconds = int(steps.step[-1]), float(ends[-1])
        self.steps += len(steps)
        self.wall_ns += nanoseconds(steps.wall_seconds)
        for kind in ("phase", "device", "waited", "held"):
            for name, seconds in getattr(steps, f"{kind}_seconds").items():
                if np.any(seconds > 0):
                    getattr(self, f"{kind}_ns")[name] += nanoseconds(seconds)
        for seconds in list(steps.device_seconds.values())[:1]:
            self.device_steps += int(np.count_nonzero(~np.isnan(seconds)))
        for name, known in self.counts.items():
            more = total(getattr(steps, name))
            self.counts[name] = None if known is None or more is None else known + more
        if not np.isnan(steps.documents).all():
            self.shortest = float(np.fmin(self.shortest, np.nanmin(steps.shortest)))
            self.longest = float(np.fmax(self.longest, np.nanmax(steps.longest)))
        for bound, documents in steps.length_buckets.items():
            self.length_buckets[bound] += int(np.nansum(documents))

    @property
    def wall_seconds(self) -> float:
        return self.wall_ns / 1e9

    @property
    def training_seconds(self) -> float:
        """Wall of the steps without evaluation and checkpointing."""
        return (self.wall_ns - self.phase_ns["evaluation"] - self.phase_ns["checkpointing"]) / 1e9


@dataclass
class RankSteps:
    """The steps of one rank, as far as they were read; ``skipped``: lines that hold something else."""

    LINES: ClassVar[LineReader[StepRecord]] = LineReader(StepRecord, "step record")

    rank: int
    segments: list[SegmentSteps] = field(default_factory=list)
    skipped: int = 0
    _blocks: list[StepColumns] = field(default_factory=list)

    def read(self, tail: Tail) -> None:
        """Take in what came since the last look; a line that is no record is skipped and counted."""
        self.skipped += self.LINES.read(tail, self.add)

    def add(self, lines: Sequence[StepRecord]) -> None:
        """Take in records, at least one, in the order written."""
        steps = columns_of(lines)
        for rows in runs(steps.segment):
            number = int(steps.segment[rows.start])
            segment = next((one for one in reversed(self.segments) if one.segment == number), None)
            if segment is None:
                segment = SegmentSteps(number)
                self.segments.append(segment)
            segment.add(steps[rows])
        self._blocks.append(steps)
        if self.rank and sum(map(len, self._blocks)) > 2 * MOST_ROWS:
            self._blocks = [joined(self._blocks)[-MOST_ROWS:]]

    @property
    def columns(self) -> StepColumns:
        """All steps of rank 0; of another rank at least the last ``MOST_ROWS``, if there are so many."""
        self._blocks = [joined(self._blocks) if self._blocks else columns_of([])]
        return self._blocks[0]

    def step_seconds(self, segment: int) -> Column:
        return self.columns.step_seconds[self.columns.segment == segment]

    def total(self, times: Literal["phase_ns", "device_ns", "waited_ns", "held_ns"]) -> Counter[str]:
        found: Counter[str] = Counter()
        for segment in self.segments:
            found.update(getattr(segment, times))
        return found

    @property
    def steps(self) -> int:
        return sum(segment.steps for segment in self.segments)

    @property
    def training_seconds(self) -> float:
        return math.fsum(segment.training_seconds for segment in self.segments)


def read_columns(path: Path) -> StepColumns:
    """The steps of one file; raises OutputError where it cannot be read, or was written by a newer version."""
    found = RankSteps(0)
    found.read(Tail(path))
    return found.columns
