"""Consecutive optimizer steps put together, and their columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
        wall_seconds, step_seconds: sums; the latter without evaluation and checkpointing.
        phase_seconds: sums, ``unattributed`` included.
        device_seconds: sums; None where a step has none.
        not_finite: logged figures that are not.
        columns: the other columns of a StepSeries, by name; a missing one is not known.
    """

    group: int
    count: int
    first_step: int
    last_step: int
    started_at_seconds: float
    wall_seconds: float
    step_seconds: float
    phase_seconds: dict[str, float]
    device_seconds: dict[str, float] | None
    not_finite: int = 0
    columns: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Mapping[str, Any], step_seconds: float) -> StepBucket:
        """One step.

        Args:
            record: as ``StepRecord.to_json`` writes it.
            step_seconds: its wall without evaluation and checkpointing.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is no such record.
        """
        phases = dict(record["phase_seconds"])
        wall = record["wall_seconds"]
        phases["unattributed"] = wall - math.fsum(phases.values())
        device = record.get("device_seconds")
        bucket = cls(
            group=record["segment"],
            count=1,
            first_step=record["step"],
            last_step=record["step"],
            started_at_seconds=record["started_at_seconds"],
            wall_seconds=wall,
            step_seconds=step_seconds,
            phase_seconds=phases,
            device_seconds=None if device is None else dict(device),
            columns={"step_seconds_min": step_seconds, "step_seconds_max": step_seconds},
        )
        bucket._tell(record)
        return bucket

    def _tell(self, record: Mapping[str, Any]) -> None:
        columns = self.columns
        for part, names in (
            ("tokens", {kind: f"{kind}_tokens" for kind in ("processed", "non_padding", "loss_bearing")}),
            ("sequences", {"documents": "samples"}),
            ("work", {"model_flops": "model_flops", "hardware_flops": "hardware_flops"}),
            ("memory", {name: name for name in ("peak_allocated_bytes", "peak_reserved_bytes")}),
        ):
            for key, column in names.items():
                value = (record.get(part) or {}).get(key)
                if value is not None:
                    columns[column] = value
        for name in _LAST:
            value = record.get(name)
            if value is None:
                continue
            value = float(value)  # one that is not finite is held as text
            if math.isfinite(value):
                columns[name] = value
            else:
                self.not_finite += name != "learning_rate"
        if "loss" in columns:
            columns["loss_min"] = columns["loss_max"] = columns["loss"]
        if "grad_norm" in columns:
            columns["grad_norm_max"] = columns["grad_norm"]

    def merge(self, later: object) -> None:
        """Take in the bucket that follows."""
        assert isinstance(later, StepBucket)
        self.count += later.count
        self.last_step = later.last_step
        self.wall_seconds += later.wall_seconds
        self.step_seconds += later.step_seconds
        self.not_finite += later.not_finite
        _add(self.phase_seconds, later.phase_seconds)
        if self.device_seconds is None or later.device_seconds is None:
            self.device_seconds = None
        else:
            _add(self.device_seconds, later.device_seconds)
        ours, theirs = self.columns, later.columns
        for name in _SUMS:
            if name in ours and name in theirs:
                ours[name] += theirs[name]
            else:
                ours.pop(name, None)
        ours.update((name, theirs[name]) for name in _LAST if name in theirs)
        for names, choose in ((_LEAST, min), (_MOST, max)):
            ours.update((name, choose(ours.get(name, theirs[name]), theirs[name])) for name in names if name in theirs)


def _add(sums: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0.0) + value


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
        wall_seconds=column(lambda one: round(one.wall_seconds, 9)),
        step_seconds_mean=column(lambda one: one.step_seconds / one.count),
        phase_seconds=_by_phase([bucket.phase_seconds for bucket in buckets], 0.0),
        device_seconds=_by_phase([bucket.device_seconds for bucket in buckets], None),
        not_finite=column(lambda one: one.not_finite),
        **known,
    )


def _by_phase(sums: Sequence[Mapping[str, float] | None], missing: float | None) -> dict[str, list[Any]]:
    """Phases in the order in which a step goes through them; ``missing`` where a bucket is not known at all."""
    names = {name for one in sums if one is not None for name in one}
    ordered = [*(name for name in PHASES if name in names), *sorted(names.difference(PHASES))]
    return {name: [missing if one is None else round(one.get(name, 0.0), 9) for one in sums] for name in ordered}
