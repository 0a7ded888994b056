"""How values are distributed, for a plot.

What the buckets of a series come to per step and per second.

A run over its time, thinned without losing extremes: the columns behind every plot.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hf_efficient.accounting.account import build_account
from hf_efficient.accounting.calls import segments_of
from hf_efficient.accounting.processes import ProcessSpans
from hf_efficient.accounting.run_records import RunRecords, read_records
from hf_efficient.accounting.steps import RankSteps, StepBucket, step_series
from hf_efficient.accounting.system import system_series
from hf_efficient.estimate.statistics import warm_up_count
from hf_efficient.records.account import ProcessAccount, RunAccount
from hf_efficient.records.series import Histogram, RunSeries, StepSeries

MOST_BINS = 60
_LOG_FROM = 4.0


def histogram(values: Sequence[float]) -> Histogram:
    """Counts over bins of equal width; of equal ratio where the largest value is more than four times the smallest.

    There are as many bins as the square root of the number of values, rounded up, and at most 60. All values alike
    give one bin from the value to itself.

    Args:
        values: finite, in any order.
    """
    import numpy

    held = numpy.asarray(values, dtype=numpy.float64)
    if not held.size:
        return Histogram()
    low, high = float(held.min()), float(held.max())
    if low == high:
        return Histogram("linear", [low, high], [held.size])
    bins = min(MOST_BINS, int(numpy.ceil(numpy.sqrt(held.size))))
    is_log = low > 0 and high > _LOG_FROM * low
    edges = numpy.geomspace(low, high, bins + 1) if is_log else numpy.linspace(low, high, bins + 1)
    counts, _ = numpy.histogram(held, edges)
    return Histogram("log" if is_log else "linear", edges.tolist(), counts.tolist())


def per_step(sums: Sequence[float | None], steps: StepSeries) -> list[float | None]:
    """The mean over a bucket's steps."""
    return [None if total is None else total / count for total, count in zip(sums, steps.steps, strict=True)]


def tokens_per_second(steps: StepSeries) -> list[float | None]:
    """Non-padding tokens of rank 0 over the time of the steps without evaluation and checkpointing."""
    times = (mean * count for mean, count in zip(steps.step_seconds_mean, steps.steps, strict=True))
    return [
        tokens / seconds if tokens is not None and seconds > 0 else None
        for tokens, seconds in zip(steps.non_padding_tokens, times, strict=True)
    ]


def padding_share(steps: StepSeries) -> list[float | None]:
    """1 - non-padding / processed."""
    return [
        1 - real / processed if processed and real is not None else None
        for processed, real in zip(steps.processed_tokens, steps.non_padding_tokens, strict=True)
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
    records = read_records(directory)
    account = build_account(records)
    return account, build_series(account, records)


def build_series(account: RunAccount, records: RunRecords) -> RunSeries:
    """The series of records that were read; ``account`` is that of the same, which knows the processes' walls."""
    first = records.first
    system = next((one.buckets.buckets for one in records.system if one.rank == 0), [])
    steps = first.buckets.buckets
    accounts = account.time.processes
    bounds = _starts(accounts)
    steady = [time for one in first.segments for time in one.step_seconds[warm_up_count(one.steps) :]]
    clocks = {one.process: start - one.began_at_seconds for one, start in zip(accounts, bounds, strict=True)}
    return RunSeries(
        process_starts_seconds=bounds,
        steps=step_series(steps, _segment_starts(records.processes, clocks, first, steps)),
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
