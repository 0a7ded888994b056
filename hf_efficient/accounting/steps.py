"""Thinning a stream of unknown length: neighbours are put together once there are too many.

Consecutive optimizer steps put together, and their columns.

Sums over the step records of one rank, taken in one pass.
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from hf_efficient.accounting.step_sums import (
    LOADER_SECONDS,
    LoaderSums,
    StepLine,
    StepSums,
    SumLine,
    add_ns,
    by_name,
    in_seconds,
    phases_ns,
    step_reader,
    step_seconds,
)
from hf_efficient.records.series import StepSeries
from hf_efficient.records.steps import PHASES
from hf_efficient.run_dir.reading import Tail

MOST_BUCKETS = 2000
"""More than a plot has columns of pixels."""


class Bucket(Protocol):
    """What is known of consecutive records."""

    @property
    def count(self) -> int:
        """How many records."""

    @property
    def group(self) -> Hashable:
        """Only neighbours of one group are put together."""

    def merge(self, later: object) -> None:
        """Take in the bucket that follows."""


_B = TypeVar("_B", bound=Bucket)
_R = TypeVar("_R")


@dataclass
class Thinned(Generic[_B]):
    """At most ``most`` buckets, and at least one per group, however long the stream is.

    All buckets of a group hold ``width`` records but its last one, which may hold fewer. When there are too many, the
    width doubles.
    """

    most: int = field(default_factory=lambda: MOST_BUCKETS)
    width: int = 1
    buckets: list[_B] = field(default_factory=list)
    _groups: int = 0

    def take(self, group: Hashable, records: Sequence[_R], put_together: Callable[[Sequence[_R]], _B]) -> None:
        """Take in the next records.

        Args:
            group: to which all of them belong.
            records: any number, in the order of the stream.
            put_together: makes a bucket of some of them.
        """
        at = 0
        while at < len(records):
            last = self.buckets[-1] if self.buckets else None
            if last is not None and last.group == group and last.count < self.width:
                until = at + self.width - last.count
                last.merge(put_together(records[at:until]))
            else:
                until = at + self.width
                self._groups += last is None or last.group != group
                self.buckets.append(put_together(records[at:until]))
            at = until
            while len(self.buckets) > max(self.most, self._groups):
                self._halve()

    def _halve(self) -> None:
        self.width *= 2
        kept: list[_B] = []
        for bucket in self.buckets:
            last = kept[-1] if kept else None
            if last is not None and last.group == bucket.group and last.count + bucket.count <= self.width:
                last.merge(bucket)
            else:
                kept.append(bucket)
        self.buckets = kept


_LAST = ("loss", "learning_rate", "grad_norm")
_LEAST = ("step_seconds_min", "loss_min")
_MOST = ("step_seconds_max", "loss_max", "grad_norm_max", "peak_allocated_bytes", "peak_reserved_bytes")


@dataclass
class StepBucket:
    """Steps of one ``train()`` call.

    Attributes:
        group: the segment.
        sums: over the steps.
        first_step, last_step: the Trainer's numbers.
        started_at_seconds: start of the first, counted from the ``train()`` call.
        step_seconds: of each, without evaluation and checkpointing; only until they are kept elsewhere.
        device_steps: steps with times of the device.
        device_ns: their sums per phase.
        loader: what the data loader did.
        not_finite: logged figures that are not.
        columns: the other columns of a StepSeries, by name; a missing one is not known.
    """

    group: int
    sums: StepSums
    first_step: int
    last_step: int
    started_at_seconds: float
    step_seconds: list[float]
    device_steps: int
    device_ns: dict[str, int]
    loader: LoaderSums = field(default_factory=LoaderSums)
    not_finite: int = 0
    columns: dict[str, Any] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many."""
        return self.sums.steps

    @classmethod
    def of(cls, lines: Sequence[StepLine]) -> StepBucket:
        """Some steps, at least one, of one ``train()`` call."""
        first, times = lines[0], [step_seconds(line) for line in lines]
        on_device = [line.device_seconds for line in lines if line.device_seconds is not None]
        bucket = cls(
            group=first.segment,
            sums=StepSums.of(lines),
            first_step=first.step,
            last_step=lines[-1].step,
            started_at_seconds=first.started_at_seconds,
            step_seconds=times,
            device_steps=len(on_device),
            device_ns=phases_ns(on_device),
            loader=LoaderSums.of(lines),
            columns={"step_seconds_min": min(times), "step_seconds_max": max(times)},
        )
        memory = [line.memory for line in lines if line.memory is not None]
        if memory:
            bucket.columns["peak_allocated_bytes"] = max([part.peak_allocated_bytes for part in memory])
            bucket.columns["peak_reserved_bytes"] = max([part.peak_reserved_bytes for part in memory])
        bucket._tell_logs(lines)
        return bucket

    def _tell_logs(self, lines: Sequence[StepLine]) -> None:
        columns = self.columns
        for name in _LAST:
            told = [float(value) for line in lines if (value := getattr(line, name)) is not None]  # "nan" is text
            finite = [value for value in told if math.isfinite(value)]
            if name != "learning_rate":
                self.not_finite += len(told) - len(finite)
            if finite:
                columns.update({name: finite[-1], f"{name}_min": min(finite), f"{name}_max": max(finite)})

    def merge(self, later: object) -> None:
        """Take in the bucket that follows."""
        assert isinstance(later, StepBucket)
        self.sums.merge(later.sums)
        self.last_step = later.last_step
        self.device_steps += later.device_steps
        add_ns(self.device_ns, later.device_ns)
        self.loader.merge(later.loader)
        self.not_finite += later.not_finite
        ours, theirs = self.columns, later.columns
        ours.update((name, theirs[name]) for name in _LAST if name in theirs)
        for names, choose in ((_LEAST, min), (_MOST, max)):
            ours.update((name, choose(ours.get(name, theirs[name]), theirs[name])) for name in names if name in theirs)

    @property
    def all_device_ns(self) -> dict[str, int] | None:
        """Sums per phase on the device; None where a step has none."""
        return self.device_ns if self.device_steps == self.count else None


def step_series(buckets: Sequence[StepBucket], starts: Mapping[int, float]) -> StepSeries:
    """The columns.

    Args:
        buckets: in the order of the steps.
        starts: segment to the run time of its ``train()`` call.
    """

    def column(read: Callable[[StepBucket], Any]) -> list[Any]:
        return [read(bucket) for bucket in buckets]

    known: dict[str, list[Any]] = {
        name: [bucket.columns.get(name) for bucket in buckets] for name in (*_LAST, *_LEAST, *_MOST)
    }
    phases = [{**one.sums.phase_ns, "unattributed": one.sums.unattributed_ns} for one in buckets]
    return StepSeries(
        segment=column(lambda one: one.group),
        steps=column(lambda one: one.count),
        first_step=column(lambda one: one.first_step),
        last_step=column(lambda one: one.last_step),
        started_at_seconds=column(lambda one: round(starts[one.group] + one.started_at_seconds, 9)),
        wall_seconds=column(lambda one: one.sums.wall_ns / 1e9),
        step_seconds_mean=column(lambda one: one.sums.training_ns / 1e9 / one.count),
        phase_seconds=_by_phase(phases),
        device_seconds=_by_phase([one.all_device_ns for one in buckets]),
        loader_seconds=_loader_seconds(buckets),
        ready_batches=column(lambda one: one.loader.mean_ready),
        processed_tokens=column(lambda one: one.sums.tokens["processed"]),
        non_padding_tokens=column(lambda one: one.sums.tokens["non_padding"]),
        loss_bearing_tokens=column(lambda one: one.sums.tokens["loss_bearing"]),
        samples=column(lambda one: one.sums.sequences and one.sums.sequences.documents),
        model_flops=column(lambda one: one.sums.work and one.sums.work.model_flops),
        hardware_flops=column(lambda one: one.sums.work and one.sums.work.hardware_flops),
        not_finite=column(lambda one: one.not_finite),
        **known,
    )


def _loader_seconds(buckets: Sequence[StepBucket]) -> dict[str, list[float | None]]:
    """By name, if it occurred; None where the loader was not watched in every step of a bucket."""
    known = [one.loader.ns if one.loader.steps == one.count else None for one in buckets]
    names = [name for name in LOADER_SECONDS if any(ns is not None and ns[name] for ns in known)]
    return {name: [None if ns is None else ns[name] / 1e9 for ns in known] for name in names}


def _by_phase(sums: Sequence[Mapping[str, int] | None]) -> dict[str, list[Any]]:
    """Seconds, phases in the order in which a step goes through them; None where a bucket is not known at all."""
    names = {name for one in sums if one is not None for name in one}
    ordered = [*(name for name in PHASES if name in names), *sorted(names.difference(PHASES))]
    return {name: [None if one is None else one.get(name, 0) / 1e9 for one in sums] for name in ordered}


@dataclass
class SegmentSteps:
    """The steps of one ``train()`` call on one rank.

    Attributes:
        segment: its number.
        sums: over its steps.
        first_step, last_step: the Trainer's numbers of the first and the last record.
        first_ends_at_seconds: end of the first record, counted from the ``train()`` call.
        last_ends_at_seconds: end of the last one.
        device_steps: records with times of the device.
        device_ns: their sums per phase.
        waited_ns: of opaque phases, what the rank waited for others.
        step_seconds: each record's wall without its evaluation and checkpointing; of rank 0 alone, like what follows.
        phase_peak_bytes: largest peak of the device's allocated memory per phase.
        loader: what the data loader did.
    """

    segment: int
    sums: StepSums = field(default_factory=StepSums)
    first_step: int | None = None
    last_step: int | None = None
    first_ends_at_seconds: float = 0.0
    last_ends_at_seconds: float = 0.0
    device_steps: int = 0
    device_ns: dict[str, int] = field(default_factory=dict)
    waited_ns: dict[str, int] = field(default_factory=dict)
    step_seconds: array[float] = field(default_factory=lambda: array("d"))
    phase_peak_bytes: dict[str, int] = field(default_factory=dict)
    loader: LoaderSums = field(default_factory=LoaderSums)

    @property
    def steps(self) -> int:
        """How many."""
        return self.sums.steps

    @property
    def tokens(self) -> dict[str, int | None]:
        """Sums per kind; None where a record does not know it."""
        return self.sums.tokens

    @property
    def wall_seconds(self) -> float:
        """Sum of the records."""
        return self.sums.wall_ns / 1e9

    @property
    def phase_seconds(self) -> dict[str, float]:
        """Sums per phase."""
        return in_seconds(self.sums.phase_ns)

    @property
    def device_seconds(self) -> dict[str, float]:
        """Sums per phase on the device."""
        return in_seconds(self.device_ns)

    @property
    def training_seconds(self) -> float:
        """Wall of the steps without evaluation and checkpointing."""
        return self.sums.training_ns / 1e9

    def add(self, lines: Sequence[SumLine], sums: StepSums) -> None:
        """Take in steps, at least one, in the order written, whose sums are known."""
        first, last = lines[0], lines[-1]
        if not self.steps:
            self.first_step, self.first_ends_at_seconds = first.step, first.started_at_seconds + first.wall_seconds
        self.last_step, self.last_ends_at_seconds = last.step, last.started_at_seconds + last.wall_seconds
        self.sums.merge(sums)
        waited = [line.waited_seconds for line in lines if line.waited_seconds is not None]
        if waited:
            add_ns(self.waited_ns, phases_ns(waited))

    def add_device(self, lines: Sequence[SumLine]) -> None:
        """Take in their times on the device; those of rank 0 come with their bucket."""
        timed = [line.device_seconds for line in lines if line.device_seconds is not None]
        self.device_steps += len(timed)
        if timed:
            add_ns(self.device_ns, phases_ns(timed))

    def put_together(self, lines: Sequence[StepLine]) -> StepBucket:
        """Take in steps of rank 0, and give the bucket that they make."""
        bucket = StepBucket.of(lines)
        self.add(lines, bucket.sums)
        self.step_seconds.extend(bucket.step_seconds)
        bucket.step_seconds = []
        self.device_steps += bucket.device_steps
        add_ns(self.device_ns, bucket.device_ns)
        self.loader.merge(bucket.loader)
        memory = [line.memory.phase_peak_allocated_bytes for line in lines if line.memory is not None]
        for name, peaks in by_name(memory):
            self.phase_peak_bytes[name] = max(*peaks, self.phase_peak_bytes.get(name, 0))
        return bucket


@dataclass
class RankSteps:
    """The steps of one rank.

    Attributes:
        rank: its index.
        segments: by ``train()`` call, in the order written.
        skipped: lines that hold something else.
        buckets: the same thinned, for the series; of rank 0 alone.
    """

    rank: int
    segments: list[SegmentSteps] = field(default_factory=list)
    skipped: int = 0
    buckets: Thinned[StepBucket] = field(default_factory=Thinned)

    def add(self, lines: Sequence[SumLine]) -> None:
        """Take in steps, at least one, in the order written; those of rank 0 are StepLines."""
        for part in _by_segment(lines):
            segment = self._segment(part[0].segment)
            if self.rank == 0:
                self.buckets.take(segment.segment, part, segment.put_together)  # type: ignore[arg-type]
            else:
                segment.add(part, StepSums.of(part))
                segment.add_device(part)

    def _segment(self, number: int) -> SegmentSteps:
        for segment in reversed(self.segments):
            if segment.segment == number:
                return segment
        self.segments.append(SegmentSteps(number))
        return self.segments[-1]


def _by_segment(lines: Sequence[SumLine]) -> list[Sequence[SumLine]]:
    if len({line.segment for line in lines}) == 1:  # nearly always
        return [lines]
    return [list(part) for _, part in itertools.groupby(lines, key=lambda line: line.segment)]


class StepsReader:
    """Sums up a file of step records that grows.

    Attributes:
        tail: of the file.
        sums: of what has been read; of rank 0, 8 bytes are kept per step, of the others none.
    """

    def __init__(self, path: Path, rank: int) -> None:
        """Nothing is read before ``look``.

        Args:
            path: ``steps.jsonl`` or ``steps.rankN.jsonl``.
            rank: whose it is.
        """
        self.tail, self.sums = Tail(path), RankSteps(rank)

    def look(self) -> None:
        """Take in what came since the last look; a line that is no step record is skipped and counted.

        Raises:
            OutputError: the file cannot be read, or was written by a newer version.
            Replaced: it does not go on from where it was left.
        """
        reader = step_reader(detailed=self.sums.rank == 0)
        for block in self.tail.blocks():
            lines, skipped = reader.read(block)
            self.sums.skipped += skipped
            if lines:
                self.sums.add(lines)
