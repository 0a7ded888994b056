"""Percentiles by hand and against numpy; warm-up by its rule; a million steps of eight ranks stay exact."""

from __future__ import annotations

import random
from array import array

import numpy
import pytest

from hf_efficient.estimate.percentiles import StepTimes, TimeSummary, percentile, warmup_count


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([1.0, 2.0, 4.0, 8.0], 0.95, 7.4),
        ([1.0, 2.0, 4.0, 8.0], 0.5, 3.0),
        ([1.0, 2.0, 4.0, 8.0], 0.0, 1.0),
        ([1.0, 2.0, 4.0, 8.0], 1.0, 8.0),
        ([3.0], 0.99, 3.0),
        ([10.0, 20.0, 30.0], 0.5, 20.0),
    ],
)
def test_percentiles_by_hand(values, share, expected):
    assert percentile(values, share) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.95, 0.99, 0.999, 1.0])
def test_percentiles_are_numpy_s_default(share):
    values = sorted(random.Random(0).lognormvariate(0, 1) for _ in range(997))
    assert percentile(values, share) == pytest.approx(float(numpy.percentile(values, 100 * share)), rel=1e-12)


@pytest.mark.parametrize(
    ("values", "share", "told"),
    [
        ([], 0.5, "no values: a percentile needs at least one"),
        ([1.0], 1.1, "share 1.1 is outside 0 to 1"),
        ([1.0], -0.1, "share -0.1 is outside 0 to 1"),
    ],
)
def test_what_has_no_percentile(values, share, told):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        percentile(values, share)
    assert str(error.value) == told


@pytest.mark.parametrize(("steps", "warmup"), [(0, 0), (1, 1), (5, 1), (10, 1), (11, 2), (100, 10), (1_000_000, 10)])
def test_warmup_is_a_tenth_and_at_most_ten(steps, warmup):
    assert warmup_count(steps) == warmup


def test_a_run_by_hand():
    times = StepTimes()
    times.extend([9.0, 1.0, 2.0, 4.0, 8.0])
    assert times.warmup() == TimeSummary(1, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0)
    steady = times.steady()
    assert steady is not None
    assert (steady.steps, steady.total_seconds, steady.mean_seconds) == (4, 15.0, 3.75)
    assert (steady.min_seconds, steady.p50_seconds, steady.max_seconds) == (1.0, 3.0, 8.0)
    assert steady.p95_seconds == pytest.approx(7.4)
    assert steady.p99_seconds == pytest.approx(7.88)


def test_each_segment_and_rank_has_its_own_warmup():
    times = StepTimes()
    for segment, rank, first in [(0, 0, 50.0), (0, 1, 60.0), (1, 0, 70.0)]:
        times.extend([first, 1.0, 1.0], segment=segment, rank=rank)
    warmup, steady = times.warmup(), times.steady()
    assert warmup is not None
    assert steady is not None
    assert (warmup.steps, warmup.min_seconds, warmup.max_seconds) == (3, 50.0, 70.0)
    assert (steady.steps, steady.max_seconds) == (6, 1.0)


def test_no_steps_and_one_step():
    times = StepTimes()
    assert (times.steady(), times.warmup()) == (None, None)
    times.add(2.0)
    assert times.steady() is None


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_a_time_that_is_none_is_refused(seconds):
    with pytest.raises(ValueError, match=r"^a step of .* seconds$"):
        StepTimes().add(seconds)


def test_a_million_steps_keep_their_extremes():
    """0, 1, 2, ... 999,999 in a shuffled order over eight ranks, ten steps of warm-up each: all values are known."""
    order = numpy.random.default_rng(0).permutation(1_000_000).astype(numpy.float64)
    times = StepTimes()
    for rank in range(8):
        part = array("d", order[rank * 125_000 : (rank + 1) * 125_000].tobytes())
        times.extend(part, rank=rank)
    kept = numpy.concatenate([order[rank * 125_000 + 10 : (rank + 1) * 125_000] for rank in range(8)])
    steady = times.steady()
    assert steady is not None
    assert steady.steps == 999_920
    assert (steady.min_seconds, steady.max_seconds) == (kept.min(), kept.max())
    assert steady.p99_seconds == pytest.approx(float(numpy.percentile(kept, 99)), rel=1e-12)
    assert steady.total_seconds == kept.sum()
