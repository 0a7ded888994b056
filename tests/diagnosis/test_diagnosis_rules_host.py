"""What the host does beside the steps: logs, reads of tensors, copies to the device."""

from __future__ import annotations

import pytest

from hf_efficient.diagnosis.rules.host import hidden_synchronisation, host_to_device_copy
from hf_efficient.diagnosis.rules.pauses import logging_cost
from hf_efficient.records.findings import Abstention
from tests.diagnosis.cases import case_in, settings, step
from tests.diagnosis.loaders import loaded_step

PLAIN = {"forward": 0.4, "backward": 0.6}


def test_logs_of_every_step_to_a_slow_tracker(tmp_path):
    steps = [step(number, phases={**PLAIN, "logging": 0.25}) for number in range(1, 101)]
    facts = {"settings": settings(arguments={"logging_strategy": "steps", "logging_steps": 1})}
    found = logging_cost(case_in(tmp_path, steps, facts=facts))
    assert found.title == "20% of the training loop goes into logs, 250 ms each"
    assert found.cost.seconds == pytest.approx(25)
    # A hundredth allows 0.01 * 100 / 0.99 / 0.25 = 4.04 logs in 100 steps: every 24.75, so 25 steps; four stay.
    assert found.remedies[0].overrides == {"train.logging_steps": 25}
    assert found.remedies[0].gain.seconds == pytest.approx(24)
    assert found.remedies[0].gain.share == pytest.approx(0.192)


def test_quick_logs_are_no_finding(tmp_path):
    steps = [step(number, phases={**PLAIN, "logging": 0.04}) for number in range(1, 11)]
    assert logging_cost(case_in(tmp_path, steps)) is None


def test_logs_that_are_not_told_apart_are_no_verdict(tmp_path):
    assert isinstance(logging_cost(case_in(tmp_path / "a")), Abstention)
    coarse = [step(phases={"forward_backward": 1.0, "between_steps": 0.5})]
    assert isinstance(logging_cost(case_in(tmp_path / "b", coarse)), Abstention)


def site(count, *, library=False, line=12, seconds=0.0):
    file = "/lib/transformers/trainer.py" if library else "/project/work/train.py"
    told = {"file": file, "line": line, "function": "compute_loss", "operator": "item", "inside_library": library}
    return {**told, "count_per_step": count, "seconds_per_step": seconds, "user_file": None, "user_line": None}


def census(folder, *sites, on_device=False, steps=10, **arguments):
    facts = {
        "settings": settings(arguments=arguments),
        "synchronisations": {"steps": 2, "on_device": on_device, "sites": list(sites)},
    }
    return case_in(folder, [step(number) for number in range(1, steps + 1)], facts=facts)


def test_reads_of_the_users_code_are_named_and_told_from_a_librarys(tmp_path):
    found = hidden_synchronisation(census(tmp_path, site(5.0, library=True), site(2.0), site(1.0, line=30)))
    assert found.title == (
        "your code reads tensors 3 times per step, at 2 lines, first work/train.py:12; on a CPU that costs little, on "
        "a GPU each read waits until the device is done"
    )
    assert found.severity == "warning"
    assert found.cost.seconds is None
    assert [one.value for one in found.evidence] == [2.0, 1.0, 5.0]
    assert found.evidence[1].what == "reads per step at work/train.py:30 in compute_loss, item"


def test_on_a_device_they_cost_what_was_waited(tmp_path):
    found = hidden_synchronisation(census(tmp_path, site(1.0, seconds=0.02), on_device=True))
    assert found.title == "your code reads tensors once per step, at 1 line, first work/train.py:12"
    assert found.cost.seconds == pytest.approx(0.2)


def test_a_library_that_reads_is_worth_knowing_on_a_device_only(tmp_path):
    reads = site(2.0, library=True)
    found = hidden_synchronisation(census(tmp_path / "a", reads, on_device=True, logging_nan_inf_filter=True))
    assert found.severity == "info"
    assert found.remedies[0].overrides == {"train.logging_nan_inf_filter": False}
    assert hidden_synchronisation(census(tmp_path / "b", reads, logging_nan_inf_filter=True)) is None


def test_a_read_now_and_then_is_no_finding_and_without_a_census_there_is_no_verdict(tmp_path):
    assert hidden_synchronisation(census(tmp_path / "a", site(0.5))) is None
    unasked = hidden_synchronisation(case_in(tmp_path / "b", [step()]))
    assert isinstance(unasked, Abstention)
    assert unasked.instrument == "efficiency.profile.synchronisations"


def copied(folder, seconds, *, tensors=3, size=12_000_000, pinned=False, device="cuda", steps=20):
    """Each step hands its batch over in so many seconds, beside a second of computing."""
    batch = {str(n): {"bytes": size // tensors, "pinned": pinned} for n in range(tensors)}
    plain = [loaded_step(number, 1.0, wait_seconds=0.1, bytes=size) for number in range(1, steps + 1)]
    for one in plain:
        one["phase_seconds"]["data_wait"] += seconds
        one["wall_seconds"] += seconds
    facts = {"settings": settings(device={"type": device}), "loader": {"first_batch": batch}}
    return case_in(folder, plain, facts=facts)


def test_pageable_batches_that_hold_the_gpu_up(tmp_path):
    found = host_to_device_copy(copied(tmp_path, 0.2))
    assert found.title == (
        "15.4% of the training loop hands batches to the GPU from pageable memory: 11.4 MiB in 200 ms per step"
    )
    # 12 MB at 12 GB/s take 1 ms, three calls 30 us: 198.97 ms in each of 20 steps.
    assert found.remedies[0].gain.seconds == pytest.approx(20 * 0.19897)
    overrides = {"train.accelerator_config": {"non_blocking": True}, "train.dataloader_pin_memory": True}
    assert found.remedies[0].overrides == overrides


def test_pinned_batches_may_still_be_waited_for_and_small_pieces_put_together(tmp_path):
    pinned = host_to_device_copy(copied(tmp_path / "a", 0.2, pinned=True))
    assert pinned.remedies[0].overrides == {"train.accelerator_config": {"non_blocking": True}}
    pieces = host_to_device_copy(copied(tmp_path / "b", 0.2, tensors=40, size=40_000))
    assert "in many small pieces" in pieces.title
    assert not pieces.remedies[0].overrides


def test_quick_copies_and_cpus_are_no_finding_and_unknown_batches_no_verdict(tmp_path):
    assert host_to_device_copy(copied(tmp_path / "a", 0.02)) is None
    assert host_to_device_copy(copied(tmp_path / "b", 0.2, device="cpu")) is None
    cuda = {"settings": settings(device={"type": "cuda"})}
    assert isinstance(host_to_device_copy(case_in(tmp_path / "c", [step()], facts=cuda)), Abstention)
    assert isinstance(host_to_device_copy(case_in(tmp_path / "d")), Abstention)
