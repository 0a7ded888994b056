"""Sums over the step records of one rank, taken in one pass."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hf_efficient.account.nanoseconds import add_ns, in_seconds, phases_ns, sum_ns
from hf_efficient.account.step_buckets import StepBucket
from hf_efficient.account.step_lines import StepLine, SumLine, step_reader, step_seconds
from hf_efficient.account.tail import Tail
from hf_efficient.account.thinning import Thinned

__all__ = ["TOKEN_KINDS", "RankSteps", "SegmentSteps", "SequenceSums", "StepsReader", "WorkSums", "sum_steps"]

TOKEN_KINDS = ("processed", "non_padding", "loss_bearing")


@dataclass
class SequenceSums:
    """See ``SequenceCounts``: the same over many steps."""

    rows: int = 0
    documents: int = 0
    shortest: int | None = None
    longest: int | None = None
    length_buckets: dict[str, int] = field(default_factory=dict)


@dataclass
class WorkSums:
    """See ``StepWork``: the same over many steps."""

    model_flops: int = 0
    hardware_flops: int = 0


@dataclass
class SegmentSteps:
    """The steps of one ``train()`` call on one rank.

    Attributes:
        segment: its number.
        steps: how many.
        first_step, last_step: the Trainer's numbers of the first and the last record.
        first_ends_at_seconds: end of the first record, counted from the ``train()`` call.
        last_ends_at_seconds: end of the last one.
        wall_ns: sum of the records.
        phase_ns: sums per phase.
        tokens: sums per kind; None where a record does not know it.
        sequences, work: sums; None where a record does not know them.
        device_steps: records with times of the device.
        device_ns: their sums per phase.
        phase_peak_bytes: largest peak of the device's allocated memory per phase.
        step_seconds: each record's wall without its evaluation and checkpointing; of rank 0 alone.
    """

    segment: int
    steps: int = 0
    first_step: int | None = None
    last_step: int | None = None
    first_ends_at_seconds: float = 0.0
    last_ends_at_seconds: float = 0.0
    wall_ns: int = 0
    phase_ns: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(TOKEN_KINDS, 0))
    sequences: SequenceSums | None = field(default_factory=SequenceSums)
    work: WorkSums | None = field(default_factory=WorkSums)
    device_steps: int = 0
    device_ns: dict[str, int] = field(default_factory=dict)
    phase_peak_bytes: dict[str, int] = field(default_factory=dict)
    step_seconds: array[float] = field(default_factory=lambda: array("d"))

    @property
    def wall_seconds(self) -> float:
        """Sum of the records."""
        return self.wall_ns / 1e9

    @property
    def phase_seconds(self) -> dict[str, float]:
        """Sums per phase."""
        return in_seconds(self.phase_ns)

    @property
    def device_seconds(self) -> dict[str, float]:
        """Sums per phase on the device."""
        return in_seconds(self.device_ns)

    @property
    def training_seconds(self) -> float:
        """Wall of the steps without evaluation and checkpointing."""
        return (self.wall_ns - self.phase_ns.get("evaluation", 0) - self.phase_ns.get("checkpointing", 0)) / 1e9

    def add(self, lines: Sequence[SumLine]) -> None:
        """Take in steps, at least one, in the order written."""
        first, last = lines[0], lines[-1]
        if not self.steps:
            self.first_step, self.first_ends_at_seconds = first.step, first.started_at_seconds + first.wall_seconds
        self.last_step, self.last_ends_at_seconds = last.step, last.started_at_seconds + last.wall_seconds
        self.steps += len(lines)
        self.wall_ns += sum_ns([line.wall_seconds for line in lines])
        add_ns(self.phase_ns, phases_ns([line.phase_seconds for line in lines]))
        self._add_tokens(lines)
        self._add_sequences(lines)
        self._add_work(lines)

    def add_details(self, lines: Sequence[StepLine]) -> None:
        """Take in what only rank 0's lines are read for."""
        self.step_seconds.extend([step_seconds(line) for line in lines])
        timed = [line.device_seconds for line in lines if line.device_seconds is not None]
        self.device_steps += len(timed)
        add_ns(self.device_ns, phases_ns(timed))
        peaks = self.phase_peak_bytes
        for line in lines:
            if line.memory is not None:
                for name, size in line.memory.phase_peak_allocated_bytes.items():
                    if size > peaks.get(name, -1):
                        peaks[name] = size

    def _add_tokens(self, lines: Sequence[SumLine]) -> None:
        parts = [line.tokens for line in lines]
        for kind, counts in (
            ("processed", [part.processed for part in parts]),
            ("non_padding", [part.non_padding for part in parts]),
            ("loss_bearing", [part.loss_bearing for part in parts]),
        ):
            known = self.tokens[kind]
            if known is not None:
                self.tokens[kind] = None if None in counts else known + sum(counts)  # type: ignore[arg-type]

    def _add_sequences(self, lines: Sequence[SumLine]) -> None:
        sums, parts = self.sequences, [line.sequences for line in lines if line.sequences is not None]
        if sums is None or len(parts) < len(lines):
            self.sequences = None
            return
        sums.rows += sum([part.rows for part in parts])
        sums.documents += sum([part.documents for part in parts])
        shortest, longest = min([part.shortest for part in parts]), max([part.longest for part in parts])
        sums.shortest = shortest if sums.shortest is None else min(shortest, sums.shortest)
        sums.longest = longest if sums.longest is None else max(longest, sums.longest)
        buckets = sums.length_buckets
        for part in parts:
            for bound, count in part.length_buckets.items():
                buckets[bound] = buckets.get(bound, 0) + count

    def _add_work(self, lines: Sequence[SumLine]) -> None:
        sums, parts = self.work, [line.work for line in lines if line.work is not None]
        if sums is None or len(parts) < len(lines):
            self.work = None
            return
        sums.model_flops += sum([part.model_flops for part in parts])
        sums.hardware_flops += sum([part.hardware_flops for part in parts])


@dataclass
class RankSteps:
    """The steps of one rank.

    Attributes:
        rank: its index.
        segments: by ``train()`` call, in the order written.
        buckets: the same thinned, for the series; of rank 0 alone.
    """

    rank: int
    segments: list[SegmentSteps] = field(default_factory=list)
    buckets: Thinned[StepBucket] = field(default_factory=Thinned)

    def add(self, lines: Sequence[SumLine]) -> None:
        """Take in steps, at least one, in the order written; those of rank 0 are StepLines."""
        for part in _by_segment(lines):
            segment = self._segment(part[0].segment)
            segment.add(part)
            if self.rank == 0:
                segment.add_details(part)  # type: ignore[arg-type]
                self.buckets.take(part[0].segment, part, StepBucket.of)  # type: ignore[arg-type]

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
        sums: of what has been read.
    """

    def __init__(self, path: Path, rank: int) -> None:
        """Nothing is read before ``look``.

        Args:
            path: ``steps.jsonl`` or ``steps.rankN.jsonl``.
            rank: whose it is.
        """
        self.sums = RankSteps(rank)
        self._tail, self._reader = Tail(path), step_reader(rank)

    def look(self) -> None:
        """Take in what came since the last look.

        Raises:
            OutputError: the file cannot be read, holds something else, or was written by a newer version.
            Replaced: it does not go on from where it was left.
        """
        for block in self._tail.blocks():
            lines = self._reader.read(block)
            if lines:
                self.sums.add(lines)


def sum_steps(path: Path, rank: int) -> RankSteps:
    """One pass over a file of step records; of rank 0, 8 bytes are kept per step, of the others none.

    Raises:
        OutputError: the file cannot be read, holds something else, or was written by a newer version.
    """
    reader = StepsReader(path, rank)
    reader.look()
    return reader.sums
