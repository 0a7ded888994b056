"""Sums over the step records of one rank, taken in one pass."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hf_efficient.account.loader import LoaderSums
from hf_efficient.account.nanoseconds import add_ns, by_name, in_seconds, phases_ns
from hf_efficient.account.step_buckets import StepBucket
from hf_efficient.account.step_lines import StepLine, SumLine, step_reader
from hf_efficient.account.step_sums import StepSums
from hf_efficient.account.tail import Tail
from hf_efficient.account.thinning import Thinned

__all__ = ["RankSteps", "SegmentSteps", "StepsReader"]


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
