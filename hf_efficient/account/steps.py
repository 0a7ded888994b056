"""Sums over the step records of one rank, taken in one pass."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_efficient.account.reading import check_version, read_lines
from hf_efficient.account.step_buckets import StepBucket
from hf_efficient.account.thinning import Thinned
from hf_efficient.errors import OutputError

__all__ = ["TOKEN_KINDS", "Mark", "RankSteps", "SegmentSteps", "sum_steps"]

_MOST_MARKS = 2048

TOKEN_KINDS = ("processed", "non_padding", "loss_bearing")


@dataclass(frozen=True)
class Mark:
    """How far a ``train()`` call had come.

    Attributes:
        at_seconds: counted from the call.
        phase_seconds: what its steps had spent by then, per phase.
    """

    at_seconds: float
    phase_seconds: dict[str, float]


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
        device_steps: records with times of the device.
        device_seconds: their sums per phase.
        phase_peak_bytes: largest peak of the device's allocated memory per phase.
        step_seconds: each record's wall without its evaluation and checkpointing; empty where not asked for.
        marks: where the sums stood, about once per second, and on both sides of a longer step; further apart in a long
            run. They tell when a phase took its time. Empty where the times are not asked for.
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
    device_steps: int = 0
    device_seconds: dict[str, float] = field(default_factory=dict)
    phase_peak_bytes: dict[str, int] = field(default_factory=dict)
    step_seconds: array[float] = field(default_factory=lambda: array("d"))
    marks: list[Mark] = field(default_factory=list)
    _mark_every_seconds: float = 1.0

    @property
    def training_seconds(self) -> float:
        """Wall of the steps without evaluation and checkpointing."""
        apart = self.phase_seconds.get("evaluation", 0.0) + self.phase_seconds.get("checkpointing", 0.0)
        return self.wall_seconds - apart

    def add(self, record: dict[str, Any], *, keep_times: bool) -> float:
        """Take in one record.

        Returns:
            Its wall without its evaluation and checkpointing.

        Raises:
            KeyError, TypeError, AttributeError: it is not one.
        """
        wall, phases = record["wall_seconds"], record["phase_seconds"]
        if keep_times and (not self.marks or wall >= self._mark_every_seconds):
            self._mark(record["started_at_seconds"])
        sums, apart = self.phase_seconds, 0.0
        for name, seconds in phases.items():
            sums[name] = sums.get(name, 0.0) + seconds
            if name in ("evaluation", "checkpointing"):
                apart += seconds
        tokens = record["tokens"]
        for kind in TOKEN_KINDS:
            known, more = self.tokens[kind], tokens[kind]
            self.tokens[kind] = None if known is None or more is None else known + more
        if "device_seconds" in record or "memory" in record:
            self._add_device(record)
        self.last_step = record["step"]
        self.last_ends_at_seconds = record["started_at_seconds"] + wall
        if not self.steps:
            self.first_step, self.first_ends_at_seconds = self.last_step, self.last_ends_at_seconds
        self.steps += 1
        self.wall_seconds += wall
        if keep_times:
            self.step_seconds.append(wall - apart)
            if self.last_ends_at_seconds >= self.marks[-1].at_seconds + self._mark_every_seconds:
                self._mark(self.last_ends_at_seconds)
        return wall - apart

    def _add_device(self, record: dict[str, Any]) -> None:
        if "device_seconds" in record:
            self.device_steps += 1
            for name, seconds in record["device_seconds"].items():
                self.device_seconds[name] = self.device_seconds.get(name, 0.0) + seconds
        if "memory" in record:
            for name, peak in record["memory"]["phase_peak_allocated_bytes"].items():
                self.phase_peak_bytes[name] = max(peak, self.phase_peak_bytes.get(name, 0))

    def _mark(self, at_seconds: float) -> None:
        if self.marks and at_seconds <= self.marks[-1].at_seconds:
            return
        if len(self.marks) >= _MOST_MARKS:
            del self.marks[1::2]
            self._mark_every_seconds *= 2
        self.marks.append(Mark(at_seconds, dict(self.phase_seconds)))


@dataclass(frozen=True)
class RankSteps:
    """The steps of one rank by ``train()`` call, in the order written."""

    rank: int
    segments: list[SegmentSteps]


def sum_steps(path: Path, rank: int, *, keep_times: bool, series: Thinned[StepBucket] | None = None) -> RankSteps:
    """One pass over a file of step records; 8 bytes are kept per step where the times are, else none.

    Args:
        path: ``steps.jsonl`` or ``steps.rankN.jsonl``.
        rank: whose it is.
        keep_times: whether to keep each step's time.
        series: takes in the steps as well.

    Raises:
        OutputError: the file cannot be read, holds something else, or was written by a newer version.
    """
    segments: dict[int, SegmentSteps] = {}
    for number, record in _records(path):
        try:
            segment = segments.get(record["segment"])
            if segment is None:
                segment = segments[record["segment"]] = SegmentSteps(int(record["segment"]))
            step_seconds = segment.add(record, keep_times=keep_times)
            if series is not None:
                series.add(StepBucket.of(record, step_seconds))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OutputError(f"{path}:{number}: not a step record: {type(error).__name__}: {error}") from error
    return RankSteps(rank, list(segments.values()))


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, record in read_lines(path):
        check_version(path, number, record)
        yield number, record
