"""The time of a step whose batches are loaded beside it, against the formula worked by hand."""

from __future__ import annotations

import pytest

from hf_efficient.estimate.throughput import StepLoad, best_workers, loaded_step_seconds

MIXED = StepLoad(compute_seconds=1.0, compute_cores=1.0, blocked_seconds=0.6, cpu_seconds=1.8)


@pytest.mark.parametrize(
    ("workers", "cores", "seconds"),
    [
        (0, 4, 3.4),  # one after the other
        (1, 4, 2.4),  # the worker binds
        (3, 4, 1.0),  # the computing binds
        (3, 2, 1.4),  # (1 + 1.8) / 2: the cores bind
    ],
)
def test_what_binds_is_what_takes_longest(workers, cores, seconds):
    assert loaded_step_seconds(MIXED, workers, cores) == pytest.approx(seconds)


def test_a_blocked_load_takes_no_core_and_a_computed_one_takes_what_training_had():
    blocked = StepLoad(1.0, 2.0, blocked_seconds=1.0, cpu_seconds=0.0)
    computed = StepLoad(1.0, 2.0, blocked_seconds=0.0, cpu_seconds=1.0)
    assert loaded_step_seconds(blocked, 2, 2) == pytest.approx(1.0)
    assert loaded_step_seconds(computed, 2, 2) == pytest.approx(2.0)  # one after the other


def test_no_more_workers_are_advised_than_help():
    # 2.4 s over 3 workers are hidden behind 1 s of computing; two leave 1.2 s.
    assert best_workers(MIXED, cores=8) == 3
    # The cores bind at 1.4 s, which two workers (1.2 s each) reach.
    assert best_workers(MIXED, cores=2) == 2


def test_blocked_loads_may_have_twice_as_many_workers_as_there_are_cores():
    slow_disk = StepLoad(compute_seconds=0.1, compute_cores=1.0, blocked_seconds=10.0, cpu_seconds=0.0)
    slow_work = StepLoad(compute_seconds=0.1, compute_cores=1.0, blocked_seconds=0.0, cpu_seconds=10.0)
    assert best_workers(slow_disk, cores=4) == 8
    assert best_workers(slow_work, cores=4) == 4
    assert best_workers(slow_work, cores=0.5) == 1


def test_where_training_computes_on_every_core_workers_hide_what_is_blocked_alone():
    load = StepLoad(compute_seconds=1.0, compute_cores=2.0, blocked_seconds=0.6, cpu_seconds=1.8)
    assert loaded_step_seconds(load, 0, 2) == pytest.approx(3.4)
    assert loaded_step_seconds(load, 3, 2) == pytest.approx(2.8)
    assert loaded_step_seconds(load, 3, 2.5) == pytest.approx(1.9)  # half of a core is free
    assert loaded_step_seconds(load, 3, 3) == pytest.approx(3.8 / 3)


def test_a_worker_has_one_thread_where_the_training_process_had_help():
    load = StepLoad(1.0, 1.0, blocked_seconds=0.6, cpu_seconds=1.8, helped_seconds=1.2)
    assert loaded_step_seconds(load, 0, 4) == pytest.approx(3.4)
    assert loaded_step_seconds(load, 1, 4) == pytest.approx(3.6)
    assert loaded_step_seconds(load, 2, 4) == pytest.approx(1.8)
