"""Utilization, scaling, loading, the time of a batch and what an instrument costs, by hand."""

import numpy as np
import pytest

from hf_efficient.estimate.throughput import (
    StepLoad,
    Utilization,
    batch_time,
    best_workers,
    loaded_step_seconds,
    scaling_efficiency,
    slowdown,
    utilization,
)


def test_utilization_by_hand():
    """1.2e15 FLOPs in 2 s on 4 x 312e12 FLOP/s: 1.2e15 / 2.496e15."""
    found = utilization(1.2e15, 2.0, 312e12, 4)
    assert found.share == pytest.approx(0.480769230769, abs=1e-12)
    assert (found.reason, found.estimated) == (None, False)
    assert utilization(50.0, 1.0, 100.0, peak_estimated=True) == Utilization(0.5, estimated=True)
    assert utilization(200.0, 1.0, 100.0).share == 2  # by a vendor's figure
    too_fast = utilization(200.0, 1.0, 100.0, peak_estimated=True)
    assert (too_fast.share, too_fast.reason[:18]) == (None, "the run was faster")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((None, 1.0, 1e12), "the FLOPs of this model are not known"),
        ((1e12, 1.0, None), "the accelerator's peak in this dtype is not known"),
        ((1e12, 0.0, 1e12), "no time was measured"),
        ((1e12, float("nan"), 1e12), "no time was measured"),
    ],
)
def test_what_is_unknown_has_a_reason(arguments, reason):
    assert utilization(*arguments) == Utilization(None, reason)


def test_the_speed_of_a_rank_against_that_of_one_alone():
    assert scaling_efficiency(1500.0, 2, 1000.0) == pytest.approx(0.75)
    assert scaling_efficiency(6000.0, 8, 1500.0, 2) == pytest.approx(1.0)
    assert scaling_efficiency(None, 2, 1000.0) is None
    assert scaling_efficiency(1500.0, 2, None) is None
    assert scaling_efficiency(1500.0, 2, 0.0) is None


MIXED = StepLoad(compute_seconds=1.0, compute_cores=1.0, blocked_seconds=0.6, cpu_seconds=1.8)


def test_what_binds_is_what_takes_longest():
    """One after the other; the worker binds; the computing binds; the cores bind: (1 + 1.8) / 2."""
    seconds = {(0, 4): 3.4, (1, 4): 2.4, (3, 4): 1.0, (3, 2): 1.4}
    assert {case: loaded_step_seconds(MIXED, *case) for case in seconds} == pytest.approx(seconds)


def test_who_loads_and_who_computes():
    blocked = StepLoad(1.0, 2.0, blocked_seconds=1.0, cpu_seconds=0.0)
    computed = StepLoad(1.0, 2.0, blocked_seconds=0.0, cpu_seconds=1.0)
    assert loaded_step_seconds(blocked, 2, 2) == pytest.approx(1.0)
    assert loaded_step_seconds(computed, 2, 2) == pytest.approx(2.0)  # one after the other
    load = StepLoad(compute_seconds=1.0, compute_cores=2.0, blocked_seconds=0.6, cpu_seconds=1.8)
    assert loaded_step_seconds(load, 0, 2) == pytest.approx(3.4)
    assert loaded_step_seconds(load, 3, 2) == pytest.approx(2.8)
    assert loaded_step_seconds(load, 3, 2.5) == pytest.approx(1.9)  # half of a core is free
    assert loaded_step_seconds(load, 3, 3) == pytest.approx(3.8 / 3)
    load = StepLoad(1.0, 1.0, blocked_seconds=0.6, cpu_seconds=1.8, helped_seconds=1.2)
    assert loaded_step_seconds(load, 0, 4) == pytest.approx(3.4)
    assert loaded_step_seconds(load, 1, 4) == pytest.approx(3.6)
    assert loaded_step_seconds(load, 2, 4) == pytest.approx(1.8)


def test_how_many_workers_are_advised():
    # 2.4 s over 3 workers are hidden behind 1 s of computing; two leave 1.2 s.
    assert best_workers(MIXED, cores=8) == 3
    # The cores bind at 1.4 s, which two workers (1.2 s each) reach.
    assert best_workers(MIXED, cores=2) == 2
    slow_disk = StepLoad(compute_seconds=0.1, compute_cores=1.0, blocked_seconds=10.0, cpu_seconds=0.0)
    slow_work = StepLoad(compute_seconds=0.1, compute_cores=1.0, blocked_seconds=0.0, cpu_seconds=10.0)
    assert best_workers(slow_disk, cores=4) == 8
    assert best_workers(slow_work, cores=4) == 4
    assert best_workers(slow_work, cores=0.5) == 1


TOKENS = np.tile([90.0, 110.0], 13)


def test_a_line_of_batches():
    found = batch_time(0.5 + 0.01 * TOKENS, TOKENS)
    assert found.fixed_seconds == pytest.approx(0.5)
    assert found.token_seconds == pytest.approx(0.01)
    noise = np.tile([1.3, 1.3, 0.7, 0.7], 7)[:26]  # a third of the time: 0.44 / (10 * 5.1) * 100 of it as error
    assert batch_time((0.5 + 0.01 * TOKENS) * noise, TOKENS) is None
    assert batch_time(np.ones(7), TOKENS[:7]) is None
    assert batch_time(np.ones(26), np.full(26, 100.0)) is None
    assert batch_time(3.0 - 0.01 * TOKENS, TOKENS) is None


def test_a_slowdown():
    # Others: median 1.1, quartiles 1.05 and 1.15; one checkpoint of 30 s is no matter. Under: median 1.6.
    found = slowdown([1.5, 1.6, 9.0], [1.0, 1.1, 1.1, 1.2, 30.0])
    assert found.seconds == pytest.approx(3 * (1.6 - 1.1))
    assert found.why == "its steps compared with 5 others, by their medians"
    # Quartiles of the others: 1.25 and 1.75; the medians differ by 0.4.
    found = slowdown([1.9], [1.0, 1.5, 2.0, 1.25, 1.75])
    assert (found.seconds, "within their spread" in found.why) == (0.0, True)
    assert slowdown([0.5, 0.5], [1.0, 1.0, 1.0]).seconds == 0.0


@pytest.mark.parametrize(("under", "others"), [([], [1.0] * 9), ([2.0], [1.0, 1.0])])
def test_what_cannot_be_compared_is_not_known(under, others):
    assert slowdown(under, others).seconds is None
