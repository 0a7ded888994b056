"""Consecutive optimizer steps put together, and their columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_efficient.account.nanoseconds import add_ns, phases_ns, sum_ns
from hf_efficient.account.step_lines import StepLine, step_seconds
from hf_efficient.records import PHASES
from hf_efficient.records.series import StepSeries

__all__ = ["StepBucket", "step_series"]

_SUMS = ("processed_tokens", "non_padding_tokens", "loss_bearing_tokens", "samples", "model_flops", "hardware_flops")
_LAST = ("loss", "learning_rate", "grad_norm")
_LEAST = ("step_seconds_min", "loss_min")
_MOST = ("step_seconds_max", "loss_max", "grad_norm_max", "peak_allocated_bytes", "peak_reserved_bytes")


@dataclass
class StepBucket:
    """Steps of one ``train()`` call.

    Attributes:
        group: the segment.
        count: steps.
        first_step, last_step: the Trainer's numbers.
        started_at_seconds: start of the first, counted from the ``train()`` call.
        wall_ns: sum.
        phase_ns: sums, without ``unattributed``.
        device_ns: sums; None where a step has none.
        not_finite: logged figures that are not.
        columns: the other columns of a StepSeries, by name; a missing one is not known.
    """

    group: int
    count: int
    first_step: int
    last_step: int
    started_at_seconds: float
    wall_ns: int
    phase_ns: dict[str, int]
    device_ns: dict[str, int] | None
    not_finite: int = 0
    columns: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, lines: Sequence[StepLine]) -> StepBucket:
        """Some steps, at least one, of one ``train()`` call."""
        first, times = lines[0], [step_seconds(line) for line in lines]
        on_device = [line.device_seconds for line in lines if line.device_seconds is not None]
        bucket = cls(
            group=first.segment,
            count=len(lines),
            first_step=first.step,
            last_step=lines[-1].step,
            started_at_seconds=first.started_at_seconds,
            wall_ns=sum_ns([line.wall_seconds for line in lines]),
            phase_ns=phases_ns([line.phase_seconds for line in lines]),
            device_ns=phases_ns(on_device) if len(on_device) == len(lines) else None,
            columns={"step_seconds_min": min(times), "step_seconds_max": max(times)},
        )
        bucket._count(lines)
        bucket._tell_logs(lines)
        return bucket

    def _count(self, lines: Sequence[StepLine]) -> None:
        columns = self.columns
        tokens = [line.tokens for line in lines]
        columns["processed_tokens"] = _sum([part.processed for part in tokens])
        columns["non_padding_tokens"] = _sum([part.non_padding for part in tokens])
        columns["loss_bearing_tokens"] = _sum([part.loss_bearing for part in tokens])
        columns["samples"] = _sum([None if line.sequences is None else line.sequences.documents for line in lines])
        columns["model_flops"] = _sum([None if line.work is None else line.work.model_flops for line in lines])
        columns["hardware_flops"] = _sum([None if line.work is None else line.work.hardware_flops for line in lines])
        memory = [line.memory for line in lines if line.memory is not None]
        if memory:
            columns["peak_allocated_bytes"] = max([part.peak_allocated_bytes for part in memory])
            columns["peak_reserved_bytes"] = max([part.peak_reserved_bytes for part in memory])

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
        self.count += later.count
        self.last_step = later.last_step
        self.wall_ns += later.wall_ns
        self.not_finite += later.not_finite
        add_ns(self.phase_ns, later.phase_ns)
        if self.device_ns is None or later.device_ns is None:
            self.device_ns = None
        else:
            add_ns(self.device_ns, later.device_ns)
        ours, theirs = self.columns, later.columns
        for name in _SUMS:
            ours[name] = None if ours[name] is None or theirs[name] is None else ours[name] + theirs[name]
        ours.update((name, theirs[name]) for name in _LAST if name in theirs)
        for names, choose in ((_LEAST, min), (_MOST, max)):
            ours.update((name, choose(ours.get(name, theirs[name]), theirs[name])) for name in names if name in theirs)

    @property
    def unattributed_ns(self) -> int:
        """What no phase claimed."""
        return self.wall_ns - sum(self.phase_ns.values())

    @property
    def mean_seconds(self) -> float:
        """Mean of the steps, each without its evaluation and checkpointing."""
        apart = self.phase_ns.get("evaluation", 0) + self.phase_ns.get("checkpointing", 0)
        return (self.wall_ns - apart) / 1e9 / self.count


def _sum(values: Sequence[int | None]) -> int | None:
    return None if None in values else sum(values)  # type: ignore[arg-type]


def step_series(buckets: Sequence[StepBucket], starts: Mapping[int, float]) -> StepSeries:
    """The columns.

    Args:
        buckets: in the order of the steps.
        starts: segment to the run time of its ``train()`` call.
    """

    def column(read: Callable[[StepBucket], Any]) -> list[Any]:
        return [read(bucket) for bucket in buckets]

    known: dict[str, list[Any]] = {
        name: [bucket.columns.get(name) for bucket in buckets] for name in (*_SUMS, *_LAST, *_LEAST, *_MOST)
    }
    return StepSeries(
        segment=column(lambda one: one.group),
        steps=column(lambda one: one.count),
        first_step=column(lambda one: one.first_step),
        last_step=column(lambda one: one.last_step),
        started_at_seconds=column(lambda one: round(starts[one.group] + one.started_at_seconds, 9)),
        wall_seconds=column(lambda one: one.wall_ns / 1e9),
        step_seconds_mean=column(lambda one: one.mean_seconds),
        phase_seconds=_by_phase([{**one.phase_ns, "unattributed": one.unattributed_ns} for one in buckets]),
        device_seconds=_by_phase([bucket.device_ns for bucket in buckets]),
        not_finite=column(lambda one: one.not_finite),
        **known,
    )


def _by_phase(sums: Sequence[Mapping[str, int] | None]) -> dict[str, list[Any]]:
    """Seconds, phases in the order in which a step goes through them; None where a bucket is not known at all."""
    names = {name for one in sums if one is not None for name in one}
    ordered = [*(name for name in PHASES if name in names), *sorted(names.difference(PHASES))]
    return {name: [None if one is None else one.get(name, 0) / 1e9 for one in sums] for name in ordered}
