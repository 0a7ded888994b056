"""A run over its time, thinned without losing extremes: the columns behind every plot."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hf_efficient.accounting.run_records import RunRecords
from hf_efficient.accounting.steps import Column, StepColumns, bucket_starts
from hf_efficient.accounting.system import SYSTEM_BYTES, SystemColumns
from hf_efficient.accounting.time import phase_order, segments_of
from hf_efficient.records.account import Band, Histogram, RunAccount, RunSeries, StepSeries, SystemSeries

MOST_BINS = 60
_LOG_FROM = 4.0


def build_series(account: RunAccount, records: RunRecords) -> RunSeries:
    """The series of records that were read; ``account`` is that of the same, which knows the processes' walls."""
    first, lived = records.first, records.processes
    walls = [one.wall_seconds for one in account.time.processes]
    bounds = [round(sum(walls[:index]), 9) for index in range(len(walls))]
    clocks = {
        one.process: start - one.began_at_seconds for one, start in zip(account.time.processes, bounds, strict=True)
    }
    starts = {
        segment.segment: clocks[process.process] + process.called_at_seconds(segment.segment)
        for process in lived
        for segment in segments_of(process, first, lived)
    }
    system = next((one.columns for one in records.system if one.rank == 0), None)
    return RunSeries(
        process_starts_seconds=bounds,
        steps=step_series(first.columns, starts),
        step_seconds=histogram(first.columns.step_seconds[first.columns.steady]),
        system=SystemSeries() if system is None else system_series(system, clocks),
    )


class _Buckets:
    """Folds columns bucket by bucket into lists, in which None stands for NaN."""

    def __init__(self, groups: Column) -> None:
        self.starts = bucket_starts(groups)
        self.ends = np.append(self.starts, len(groups))[1:]
        self.counts = self.ends - self.starts

    def fold(self, how: np.ufunc, values: Column) -> Column:
        return how.reduceat(values, self.starts) if len(self.starts) else np.zeros(0)

    def counted(self, counts: Column) -> list[Any]:
        return [None if value != value else int(value) for value in self.fold(np.add, counts).tolist()]

    def seconds(self, times: Column) -> list[Any]:
        """Sums of times, in whole nanoseconds."""
        return _listed(self.fold(np.add, np.rint(times * 1e9)) / 1e9)

    def mean(self, values: Column) -> list[Any]:
        """Of the known values; exact to thousandths in any order."""
        known = ~np.isnan(values)
        sums = self.fold(np.add, np.rint(1000 * np.where(known, values, 0.0))) / 1000
        over = self.fold(np.add, np.where(known, 1.0, 0.0))
        return _listed(np.divide(sums, over, out=np.full(len(sums), np.nan), where=over > 0))

    def last(self, values: Column) -> list[Any]:
        places = self.fold(np.maximum, np.where(np.isfinite(values), np.arange(len(values)), -1)).astype(int)
        return [float(values[at]) if at >= start else None for at, start in zip(places, self.starts, strict=True)]

    def extreme(self, how: np.ufunc, values: Column) -> list[Any]:
        return _listed(self.fold(how, np.where(np.isfinite(values), values, np.nan)))

    def band(self, values: Column) -> Band:
        return Band(self.extreme(np.fmin, values), self.mean(values), self.extreme(np.fmax, values))


def _listed(values: Column) -> list[Any]:
    return [None if value != value else value for value in values.tolist()]


def step_series(steps: StepColumns, starts: Mapping[int, float]) -> StepSeries:
    """The columns of the steps of rank 0; ``starts``: segment to the run time of its ``train()`` call."""
    by = _Buckets(steps.segment)
    segments = steps.segment[by.starts].astype(int).tolist()
    began = zip(segments, steps.started_at_seconds[by.starts].tolist(), strict=True)
    training = zip(by.seconds(steps.step_seconds), by.counts.tolist(), strict=True)
    claimed = sum((np.rint(held * 1e9) for held in steps.phase_seconds.values()), start=np.zeros(len(steps)))
    phases = {**steps.phase_seconds, "unattributed": (np.rint(steps.wall_seconds * 1e9) - claimed) / 1e9}
    return StepSeries(
        segment=segments,
        steps=by.counts.tolist(),
        first_step=steps.step[by.starts].astype(int).tolist(),
        last_step=steps.step[by.ends - 1].astype(int).tolist(),
        started_at_seconds=[round(starts[segment] + start, 9) for segment, start in began],
        wall_seconds=by.seconds(steps.wall_seconds),
        step_seconds_mean=[seconds / count for seconds, count in training],
        phase_seconds={name: by.seconds(held) for name, held in phase_order(phases).items()},
        processed_tokens=by.counted(steps.processed),
        non_padding_tokens=by.counted(steps.non_padding),
        target_tokens=by.counted(steps.target),
        loss=by.last(steps.loss),
        loss_min=by.extreme(np.fmin, steps.loss),
        loss_max=by.extreme(np.fmax, steps.loss),
        learning_rate=by.last(steps.learning_rate),
        grad_norm=by.last(steps.grad_norm),
        not_finite=by.counted(steps.not_finite),
        preferences={name: by.last(held) for name, held in steps.preferences.items()},
    )


def system_series(samples: SystemColumns, starts: Mapping[int, float]) -> SystemSeries:
    """The columns of the samples of rank 0, of processes in ``starts``: the run time at which its clock read 0."""
    samples = samples[np.isin(samples.process, list(starts))]
    by = _Buckets(samples.process)
    clocks = np.array([starts[int(process)] for process in samples.process])
    at = np.round(clocks + samples.at_seconds, 9)
    nothing = np.full(len(samples), np.nan)
    gpus: dict[str, dict[str, Band]] = {}
    throttled: dict[str, dict[str, list[float]]] = {}
    for key, values in samples.gpus.items():
        gpu, _, name = key.partition("/")
        gpus.setdefault(gpu, {})[name] = by.band(values)
    for key, values in samples.throttled.items():
        gpu, _, why = key.partition("/")
        throttled.setdefault(gpu, {})[why] = (by.fold(np.add, values) / by.counts).tolist()
    return SystemSeries(
        process=samples.process[by.starts].astype(int).tolist(),
        started_at_seconds=at[by.starts].tolist(),
        ended_at_seconds=at[by.ends - 1].tolist(),
        **{name: by.band(samples.bytes.get(name, nothing)) for name in SYSTEM_BYTES},
        watts={name: by.band(values) for name, values in samples.watts.items()},
        host={name: by.band(values) for name, values in samples.host.items()},
        gpus=gpus,
        throttled=throttled,
    )


def histogram(values: Column | Sequence[float]) -> Histogram:
    """Counts over sqrt(n) bins, at most 60; of equal ratio where the largest value is above four times the smallest."""
    held = np.asarray(values, dtype=np.float64)
    if not held.size:
        return Histogram()
    low, high = float(held.min()), float(held.max())
    if low == high:
        return Histogram("linear", [low, high], [held.size])
    bins = min(MOST_BINS, int(np.ceil(np.sqrt(held.size))))
    is_log = low > 0 and high > _LOG_FROM * low
    edges = np.geomspace(low, high, bins + 1) if is_log else np.linspace(low, high, bins + 1)
    counts, _ = np.histogram(held, edges)
    return Histogram("log" if is_log else "linear", edges.tolist(), counts.tolist())


def per_step(sums: Sequence[float | None], steps: StepSeries) -> list[float | None]:
    return [None if total is None else total / count for total, count in zip(sums, steps.steps, strict=True)]


def tokens_per_second(steps: StepSeries) -> list[float | None]:
    """Non-padding tokens of rank 0 over the time of the steps without evaluation and checkpointing."""
    times = (mean * count for mean, count in zip(steps.step_seconds_mean, steps.steps, strict=True))
    return [
        tokens / seconds if tokens is not None and seconds > 0 else None
        for tokens, seconds in zip(steps.non_padding_tokens, times, strict=True)
    ]
