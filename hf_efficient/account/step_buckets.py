"""Consecutive optimizer steps put together, and their columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_efficient.account.loader import LOADER_SECONDS, LoaderSums
from hf_efficient.account.nanoseconds import add_ns, phases_ns
from hf_efficient.account.step_lines import StepLine, step_seconds
from hf_efficient.account.step_sums import StepSums
from hf_efficient.records import PHASES
from hf_efficient.records.series import StepSeries

__all__ = ["StepBucket", "step_series"]

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
