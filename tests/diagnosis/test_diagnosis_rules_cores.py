"""Waiting for cores: that others have, or that the run itself asks for too many of."""

from __future__ import annotations

import pytest

from hf_efficient.diagnosis.rules.machine import cpu_contention, cpu_oversubscription
from hf_efficient.records.findings import Abstention
from tests.diagnosis.cases import case_in, settings, step


def machine(folder, *, threads=2, ranks=1, cores=2, steps=20, device="cpu", **host):
    """A run of 20 s, sampled each second; before and after its loop the machine does something else."""
    quiet = dict.fromkeys(host, 0.0)
    samples = [{"at_seconds": at, "host": host if 2 <= at <= 21 else quiet} for at in [0.5, *range(2, 22), 22.5]]
    facts = {
        "settings": settings(host={"cores": cores, "torch_threads": threads}, device={"type": device}),
        "system": {"usable_cpus": cores, "ranks_here": ranks},
    }
    return case_in(folder, [step(n) for n in range(1, steps + 1)], facts=facts, system=samples)


def test_cores_that_others_have_are_told_from_slow_data(tmp_path):
    case = machine(tmp_path, other_cores=1.5, main_thread_core_wait=0.4, process_cores=0.5)
    found = cpu_contention(case)
    assert found.title == ("the training waits for a core in 40% of its time: other processes keep 1.5 cores busy of 2")
    assert found.cost.seconds == pytest.approx(8.0)  # of 20
    assert found.remedies[0].gain.share == pytest.approx(0.4)
    assert cpu_oversubscription(case) is None


def test_what_the_host_of_a_virtual_machine_takes_counts(tmp_path):
    found = cpu_contention(machine(tmp_path, other_cores=0.0, stolen_cores=1.0, main_thread_core_wait=0.3))
    assert "other virtual machines keep 1.0 cores busy of 2" in found.title


def test_too_many_threads_of_its_own_are_found(tmp_path):
    case = machine(tmp_path, threads=16, other_cores=0.0, main_thread_core_wait=0.8)
    found = cpu_oversubscription(case)
    assert found.title == "torch computes with 16 threads on 2 cores"
    assert found.remedies[0].what.endswith("OMP_NUM_THREADS=2")
    assert found.remedies[0].gain.share == pytest.approx(0.8)  # the wait
    assert cpu_contention(case) is None


def test_workers_and_ranks_want_cores_too(tmp_path):
    workers = machine(tmp_path / "a", threads=2, children_cores=1.5, other_cores=0.0, main_thread_core_wait=0.3)
    found = cpu_oversubscription(workers)
    assert found.title == "torch computes with 2 threads, beside loader workers, on 2 cores"
    assert "fewer workers" in found.remedies[0].what
    ranks = machine(tmp_path / "b", threads=2, ranks=2, other_cores=0.0, main_thread_core_wait=0.3)
    assert cpu_oversubscription(ranks).remedies[0].what.endswith("OMP_NUM_THREADS=1")


def test_a_wait_has_both_causes_by_what_each_wants_too_much(tmp_path):
    # 4 threads on 2 cores: 2 too many; others keep 1 busy: a third of the wait is theirs.
    case = machine(tmp_path, threads=4, other_cores=1.0, main_thread_core_wait=0.6)
    assert cpu_contention(case).remedies[0].gain.share == pytest.approx(0.2)
    assert cpu_oversubscription(case).remedies[0].gain.share == pytest.approx(0.4)


def test_a_gpus_run_needs_no_core_per_thread(tmp_path):
    case = machine(tmp_path, threads=16, device="cuda", other_cores=0.0, main_thread_core_wait=0.5)
    assert cpu_oversubscription(case) is None


def test_busy_others_that_hold_nobody_up_are_no_finding(tmp_path):
    case = machine(tmp_path, cores=16, other_cores=10.0, main_thread_core_wait=0.02)
    assert cpu_contention(case) is None
    assert cpu_oversubscription(case) is None


@pytest.mark.parametrize("rule", [cpu_contention, cpu_oversubscription])
def test_without_samples_of_the_loop_they_abstain(tmp_path, rule):
    assert isinstance(rule(case_in(tmp_path / "a")), Abstention)
    assert isinstance(rule(case_in(tmp_path / "b", [step()])), Abstention)
    early = [{"at_seconds": 0.5, "host": {"other_cores": 2.0, "main_thread_core_wait": 1.0}}]
    assert isinstance(rule(case_in(tmp_path / "c", [step()], system=early)), Abstention)
