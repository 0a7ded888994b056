"""Sums over the step records of one rank, taken in one pass."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_efficient.account.reading import check_version, read_lines
from hf_efficient.account.sums import SequenceSums, WorkSums
from hf_efficient.errors import OutputError

__all__ = ["TOKEN_KINDS", "RankSteps", "SegmentSteps", "sum_steps"]

TOKEN_KINDS = ("processed", "non_padding", "loss_bearing")


@dataclass
class SegmentSteps:
    """The steps of one ``train()`` call on one rank.

    Attributes:
        segment: its number.
        steps: how many.
        first_step, last_step: the Trainer's numbers of the first and the last record.
        first_ends_at_seconds: end of the first record, counted from the ``train()`` call.
        last_ends_at_seconds: end of the last one.
        wall_seconds: sum of the records.
        phase_seconds: sums per phase.
        tokens: sums per kind; None where a record does not know it.
        sequences, work: sums of what the records know.
        step_seconds: each record's wall without its evaluation and checkpointing; empty where not asked for.
    """

    segment: int
    steps: int = 0
    first_step: int | None = None
    last_step: int | None = None
    first_ends_at_seconds: float = 0.0
    last_ends_at_seconds: float = 0.0
    wall_seconds: float = 0.0
    phase_seconds: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(TOKEN_KINDS, 0))
    sequences: SequenceSums = field(default_factory=SequenceSums)
    work: WorkSums = field(default_factory=WorkSums)
    step_seconds: array[float] = field(default_factory=lambda: array("d"))

    @property
    def training_seconds(self) -> float:
        """Wall of the steps without evaluation and checkpointing."""
        apart = self.phase_seconds.get("evaluation", 0.0) + self.phase_seconds.get("checkpointing", 0.0)
        return self.wall_seconds - apart

    def add(self, record: dict[str, Any], *, keep_times: bool) -> None:
        """Take in one record.

        Raises:
            KeyError, TypeError, AttributeError: it is not one.
        """
        wall, phases = record["wall_seconds"], record["phase_seconds"]
        sums, apart = self.phase_seconds, 0.0
        for name, seconds in phases.items():
            sums[name] = sums.get(name, 0.0) + seconds
            if name in ("evaluation", "checkpointing"):
                apart += seconds
        tokens = record["tokens"]
        for kind in TOKEN_KINDS:
            known, more = self.tokens[kind], tokens[kind]
            self.tokens[kind] = None if known is None or more is None else known + more
        self.sequences.add(record.get("sequences"))
        self.work.add(record.get("work"))
        self.last_step = record["step"]
        self.last_ends_at_seconds = record["started_at_seconds"] + wall
        if not self.steps:
            self.first_step, self.first_ends_at_seconds = self.last_step, self.last_ends_at_seconds
        self.steps += 1
        self.wall_seconds += wall
        if keep_times:
            self.step_seconds.append(wall - apart)


@dataclass(frozen=True)
class RankSteps:
    """The steps of one rank by ``train()`` call, in the order written."""

    rank: int
    segments: list[SegmentSteps]


def sum_steps(path: Path, rank: int, *, keep_times: bool) -> RankSteps:
    """One pass over a file of step records; 8 bytes are kept per step where the times are, else none.

    Raises:
        OutputError: the file cannot be read, holds something else, or was written by a newer version.
    """
    segments: dict[int, SegmentSteps] = {}
    for number, record in _records(path):
        try:
            segment = segments.get(record["segment"])
            if segment is None:
                segment = segments[record["segment"]] = SegmentSteps(int(record["segment"]))
            segment.add(record, keep_times=keep_times)
        except (KeyError, TypeError, AttributeError) as error:
            raise OutputError(f"{path}:{number}: not a step record: {type(error).__name__}: {error}") from error
    return RankSteps(rank, list(segments.values()))


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, record in read_lines(path):
        check_version(path, number, record)
        yield number, record
