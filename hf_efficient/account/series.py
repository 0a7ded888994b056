"""A run over its time, thinned without losing extremes: the columns behind every plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hf_efficient.account.build import build_account, segments_of, sum_run
from hf_efficient.account.histogram import histogram
from hf_efficient.account.processes import ProcessSpans, read_processes
from hf_efficient.account.reading import records_path
from hf_efficient.account.step_buckets import StepBucket, step_series
from hf_efficient.account.steps import RankSteps
from hf_efficient.account.system_buckets import SystemBucket, SystemReader, system_series
from hf_efficient.estimate.percentiles import warm_up_count
from hf_efficient.records import ProcessAccount, RunAccount
from hf_efficient.records.series import Band, Histogram, RunSeries, StepSeries, SystemSeries

__all__ = [
    "Band",
    "Histogram",
    "RunSeries",
    "StepSeries",
    "SystemSeries",
    "account_and_series_of",
    "build_series",
    "series_of",
]


def series_of(directory: Path) -> RunSeries:
    """The series of the run that is recorded in this folder, whether it goes on, ended or died.

    Args:
        directory: the ``efficiency`` folder of a run.

    Raises:
        OutputError: there are no records, or they cannot be read.
    """
    return account_and_series_of(directory)[1]


def account_and_series_of(directory: Path) -> tuple[RunAccount, RunSeries]:
    """Both from one pass over the records.

    Args:
        directory: the ``efficiency`` folder of a run.

    Raises:
        OutputError: there are no records, or they cannot be read.
    """
    processes = read_processes(records_path(directory, "spans", 0))
    ranks = sum_run(directory)
    account = build_account(processes, ranks, directory)
    return account, build_series(account, processes, ranks, _read_system(directory))


def build_series(
    account: RunAccount,
    processes: Sequence[ProcessSpans],
    ranks: Sequence[RankSteps],
    system: Sequence[SystemBucket],
) -> RunSeries:
    """The series from what was read; ``account`` is that of the same records, which knows the processes' walls."""
    first = next((rank for rank in ranks if rank.rank == 0), RankSteps(0))
    steps = first.buckets.buckets
    accounts = account.time.processes
    bounds = _starts(accounts)
    steady = [time for one in first.segments for time in one.step_seconds[warm_up_count(one.steps) :]]
    clocks = {one.process: start - one.began_at_seconds for one, start in zip(accounts, bounds, strict=True)}
    return RunSeries(
        process_starts_seconds=bounds,
        steps=step_series(steps, _segment_starts(processes, clocks, first, steps)),
        step_seconds=histogram(steady),
        system=system_series(system, clocks),
    )


def _starts(accounts: Sequence[ProcessAccount]) -> list[float]:
    starts, until = [], 0.0
    for account in accounts:
        starts.append(round(until, 9))
        until += account.wall_seconds
    return starts


def _segment_starts(
    processes: Sequence[ProcessSpans], clocks: dict[int, float], first: RankSteps, buckets: Sequence[StepBucket]
) -> dict[int, float]:
    """Run time of each ``train()`` call. Segments of older records, without spans, lie end to end from 0 on."""
    starts = {
        segment.segment: clocks[process.process] + process.called_at_seconds(segment.segment)
        for process in processes
        for segment in segments_of(process, first, processes)
    }
    began = {bucket.group: bucket.started_at_seconds for bucket in reversed(buckets)}
    until = 0.0
    for segment in first.segments:
        if segment.segment not in starts:
            starts[segment.segment] = until - began[segment.segment]
            until += segment.wall_seconds
    return starts


def _read_system(directory: Path) -> list[SystemBucket]:
    path = records_path(directory, "system", 0)
    if not path.exists():
        return []
    reader = SystemReader(path)
    reader.look()
    return reader.readings.buckets
