"""Waiting for data, by its cause; epochs that start slowly."""

import pytest

from hf_efficient.diagnosis.rules.data import data_collation, data_storage, data_transform, few_workers
from hf_efficient.diagnosis.rules.pauses import epoch_boundary, worker_start
from hf_efficient.records.findings import Abstention
from tests.diagnosis.made import case_in, judged, loaded_facts, loaded_step, loaded_steps, step

FAMILY = (data_storage, data_transform, data_collation, few_workers)


def only(folder, steps, facts, **more):
    """What the one rule of the family that finds something says."""
    case = case_in(folder, steps, facts=facts, **more)
    found = [said for said in (rule(case) for rule in FAMILY) if said is not None]
    assert len(found) == 1
    return found[0]


def test_a_data_set_that_is_blocked_is_slow_storage_and_workers_hide_it(tmp_path):
    steps = loaded_steps(compute=1.0, wait_seconds=1.0, fetch_seconds=0.96, fetch_cpu_seconds=0.06)
    found = only(tmp_path, steps, loaded_facts(cores=4, threads=4), price_usd_per_hour=3.6)
    assert found.rule == "data_storage"
    assert found.title == (
        "50% of the training loop waits for storage: reading a step's examples blocks for 900 ms without computing"
    )
    # 0.06 s of CPU find no free core, and come after the 1 s of computing: 1.06 s in place of 2 s, in 23 steps.
    workers, local = found.remedies
    assert workers.overrides == {"train.dataloader_num_workers": 1}
    assert workers.gain.seconds == pytest.approx(23 * 0.94)
    assert workers.gain.share == pytest.approx(0.94 / 2)
    # Without the blocked part 1 s and 0.06 s, one after the other, in place of 2 s.
    assert local.gain.seconds == pytest.approx(23 * 0.94)
    judged(found, cost=23 * 0.94, cost_usd=23 * 0.94 / 1000)


def test_work_in_the_data_set_is_a_transform_where_no_core_is_idle(tmp_path):
    steps = loaded_steps(compute=1.0, wait_seconds=1.0, fetch_seconds=1.0, fetch_cpu_seconds=1.0)
    found = only(tmp_path, steps, loaded_facts(cores=2, threads=2))
    assert found.rule == "data_transform"
    assert found.title.startswith("50% of the training loop waits for the data set, which computes for 1.00 s per step")
    # Workers would take the cores that training computes on; prepared before, a step takes 1 s in place of 2.
    (once,) = found.remedies
    assert not once.overrides
    assert once.gain.share == pytest.approx(0.5)


def test_threads_of_the_data_set_compute_for_it(tmp_path):
    """The thread that loads waits for them, and no storage is blamed."""
    fetch = {"fetch_seconds": 1.0, "fetch_cpu_seconds": 0.1, "fetch_process_cpu_seconds": 3.0}
    found = only(tmp_path, loaded_steps(wait_seconds=1.0, **fetch), loaded_facts(cores=2, threads=2))
    assert found.rule == "data_transform"


def test_a_slow_collator_is_named(tmp_path):
    steps = loaded_steps(wait_seconds=0.5, fetch_seconds=0.1, collate_seconds=0.4, collate_cpu_seconds=0.3)
    found = only(tmp_path, steps, loaded_facts(collator="my.collate"))
    judged(found, rule="data_collation", overrides={"train.dataloader_num_workers": 1}, share=1 / 3)
    assert found.title == "33.3% of the training loop waits for the collator (my.collate), which takes 400 ms per step"
    assert found.remedies[1].gain.share == pytest.approx(0.4 / 1.5)


def test_busy_workers_that_cannot_keep_up_are_too_few(tmp_path):
    # 8 s of loading by 2 workers: a step of 4 s, of which 1 s computes.
    steps = loaded_steps(compute=1.0, wait_seconds=3.0, fetch_seconds=8.0, fetch_cpu_seconds=8.0, ready=0)
    found = only(tmp_path, steps, loaded_facts(workers=2, cores=16))
    assert found.rule == "few_workers"
    assert "2 workers cannot keep up" in found.title
    # 8 workers: max(1, 8 / 8, (1 + 8) / 16) = 1 s.
    but = "6 more processes, each with its own memory"
    judged(found, overrides={"train.dataloader_num_workers": 8}, share=0.75, but=but)


BLOCKED = {"wait_seconds": 1.0, "fetch_seconds": 1.0}
# 0.05 s of work, and 0.95 s until a core was free.
LATE = {**BLOCKED, "fetch_cpu_seconds": 0.05, "core_wait_seconds": 0.95}
IDLE = {**BLOCKED, "fetch_seconds": 0.2, "fetch_cpu_seconds": 0.2, "ready": 0}


@pytest.mark.parametrize(
    ("loader", "workers", "device"),
    [(IDLE, 2, {}), (LATE, 0, {}), (BLOCKED, 0, {"device_seconds": {"exposed_wait": 0.02}})],
    ids=["the wait is between the processes", "a core was waited for", "the GPU computed meanwhile"],
)
def test_data_are_not_blamed(tmp_path, loader, workers, device):
    steps = [{**one, **device} for one in loaded_steps(**loader)]
    case = case_in(tmp_path, steps, facts=loaded_facts(workers=workers))
    assert [rule(case) for rule in FAMILY] == [None] * 4


def test_workers_would_repeat_a_plain_iterable_data_set(tmp_path):
    steps = loaded_steps(wait_seconds=1.0, fetch_seconds=1.0)
    found = only(tmp_path, steps, loaded_facts(iterable=True, dataset="mine.Stream"))
    assert all(not remedy.overrides for remedy in found.remedies)
    assert "get_worker_info" in "".join(remedy.costs for remedy in found.remedies)


def test_workers_persist_where_there_are_epochs(tmp_path):
    fetch = {"wait_seconds": 1.0, "fetch_seconds": 1.0}
    steps = [loaded_step(n, start_seconds=1e-6 if n % 5 == 1 else 0.0, **fetch) for n in range(1, 24)]
    found = only(tmp_path, steps, loaded_facts())
    assert found.remedies[0].overrides["train.dataloader_persistent_workers"] is True


@pytest.mark.parametrize("rule", FAMILY)
def test_without_evidence_they_abstain(tmp_path, rule):
    nothing, unwatched = case_in(tmp_path / "a"), case_in(tmp_path / "b", [step(n) for n in range(1, 24)])
    short = case_in(tmp_path / "c", loaded_steps(7, wait_seconds=9.0), facts=loaded_facts())
    whys = {"no optimizer step is recorded", "the data loader was not watched"}
    whys.add("fewer than 5 steps after warm-up were watched")
    said = [rule(case) for case in (nothing, unwatched, short)]
    assert all(isinstance(one, Abstention) and one.rule == rule.__name__ for one in said)
    assert {one.why for one in said} == whys


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
    judged(found, cost=5.2, overrides={"train.dataloader_persistent_workers": True}, share=3.9 / 25.2)
    assert found.title == (
        "20.6% of the training loop goes into starting data loader workers anew for each of 4 epochs, 1.30 s each"
    )
    assert epoch_boundary(case) is None


def test_a_data_set_that_starts_over_is_no_matter_of_workers(tmp_path):
    start = {"start_seconds": 0.01, "wait_seconds": 1.1, "first_wait_seconds": 1.1, "fetch_seconds": 1.1}
    for folder, facts in (("a", loaded_facts(workers=0)), ("b", loaded_facts(workers=2))):
        case = case_in(tmp_path / folder, epochs(**start), facts=facts)
        found = epoch_boundary(case)
        # 1.01 s, four times, of 16 * 1 + 4 * 2.01 s.
        judged(found, cost=4.04, share=3.03 / 24.04)
        assert "the data set starts over for 1.01 s, 4 times" in found.title
        assert worker_start(case) is None


def test_workers_that_persist_and_quick_starts_are_no_finding(tmp_path):
    slow = {"start_seconds": 0.5, "wait_seconds": 0.7, "first_wait_seconds": 0.7}
    kept = case_in(tmp_path / "a", epochs(**slow), facts=loaded_facts(workers=2, persistent_workers=True))
    assert worker_start(kept) is None
    assert epoch_boundary(kept) is not None  # whatever it is, it is not that they start anew
    quick = {"start_seconds": 0.02, "wait_seconds": 0.15, "first_wait_seconds": 0.15}
    case = case_in(tmp_path / "b", epochs(**quick), facts=loaded_facts(workers=2))
    assert (worker_start(case), epoch_boundary(case)) == (None, None)
