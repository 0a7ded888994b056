"""What starting an epoch takes, with its workers or without."""

from __future__ import annotations

import pytest

from hf_efficient.diagnosis.rules.epochs import epoch_boundary, worker_start
from hf_efficient.records.findings import Abstention
from tests.diagnosis.cases import case_in, step
from tests.diagnosis.loaders import loaded_facts, loaded_step


def epochs(count=4, steps=5, **start):
    """Steps of 1 s; a batch takes 0.1 s to load, and the first of an epoch what ``start`` says, in place of it."""
    plain = {"fetch_seconds": 0.1, "fetch_cpu_seconds": 0.1, "wait_seconds": 0.1}
    numbers = range(1, count * steps + 1)
    return [loaded_step(n, 0.9, **({**plain, **start} if n % steps == 1 else plain)) for n in numbers]


def test_workers_that_start_with_every_epoch_are_found(tmp_path):
    start = {"start_seconds": 0.5, "end_seconds": 0.2, "wait_seconds": 0.7, "first_wait_seconds": 0.7, "ready": 0}
    case = case_in(tmp_path, epochs(**start), facts=loaded_facts(workers=2))
    found = worker_start(case)
    # 0.5 + 0.2, and 0.7 s of wait of which 0.1 s are the batch: 1.3 s, four times. The loop: 16 * 1 + 4 * 2.3 = 25.2 s.
    assert found.cost.seconds == pytest.approx(5.2)
    assert found.title == (
        "20.6% of the training loop goes into starting data loader workers anew for each of 4 epochs, 1.30 s each"
    )
    assert found.remedies[0].overrides == {"train.dataloader_persistent_workers": True}
    assert found.remedies[0].gain.share == pytest.approx(3.9 / 25.2)
    assert epoch_boundary(case) is None


def test_a_data_set_that_starts_over_is_no_matter_of_workers(tmp_path):
    start = {"start_seconds": 0.01, "wait_seconds": 1.1, "first_wait_seconds": 1.1, "fetch_seconds": 1.1}
    for folder, facts in (("a", loaded_facts(workers=0)), ("b", loaded_facts(workers=2))):
        case = case_in(tmp_path / folder, epochs(**start), facts=facts)
        found = epoch_boundary(case)
        # 1.01 s, four times, of 16 * 1 + 4 * 2.01 s.
        assert found.cost.seconds == pytest.approx(4.04)
        assert "the data set starts over for 1.01 s, 4 times" in found.title
        assert found.remedies[0].gain.share == pytest.approx(3.03 / 24.04)
        assert worker_start(case) is None


def test_a_slow_sampler_is_told_from_the_data_set(tmp_path):
    start = {"start_seconds": 0.01, "wait_seconds": 1.1, "first_wait_seconds": 1.1}
    found = epoch_boundary(case_in(tmp_path, epochs(**start), facts=loaded_facts(workers=0)))
    assert "the loader and its sampler start over" in found.title


def test_workers_that_persist_and_quick_starts_are_no_finding(tmp_path):
    slow = {"start_seconds": 0.5, "wait_seconds": 0.7, "first_wait_seconds": 0.7}
    kept = case_in(tmp_path / "a", epochs(**slow), facts=loaded_facts(workers=2, persistent_workers=True))
    assert worker_start(kept) is None
    assert epoch_boundary(kept) is not None  # whatever it is, it is not that they start anew
    quick = {"start_seconds": 0.02, "wait_seconds": 0.15, "first_wait_seconds": 0.15}
    case = case_in(tmp_path / "b", epochs(**quick), facts=loaded_facts(workers=2))
    assert worker_start(case) is None
    assert epoch_boundary(case) is None


def test_a_single_epoch_starts_once(tmp_path):
    start = {"start_seconds": 5.0, "wait_seconds": 0.1, "first_wait_seconds": 0.1}
    case = case_in(tmp_path, epochs(1, 20, **start), facts=loaded_facts(workers=2))
    assert worker_start(case) is None


@pytest.mark.parametrize("rule", [worker_start, epoch_boundary])
def test_without_evidence_they_abstain(tmp_path, rule):
    nothing, unwatched = case_in(tmp_path / "a"), case_in(tmp_path / "b", [step(n) for n in range(1, 24)])
    assert isinstance(rule(nothing), Abstention)
    assert rule(unwatched).why == "the data loader was not watched"
