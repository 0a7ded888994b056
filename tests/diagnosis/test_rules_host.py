"""What the host does beside the steps, the cores that it waits for, and pauses that take too much of the loop."""

import pytest

from hf_efficient.diagnosis.rules.host import hidden_synchronisation, host_to_device_copy
from hf_efficient.diagnosis.rules.machine import cpu_contention, cpu_oversubscription
from hf_efficient.diagnosis.rules.pauses import evaluations_cost, logging_cost, saves_cost
from tests.diagnosis.made import case_in, judged, loaded_step, settings, step

PLAIN = {"forward": 0.4, "backward": 0.6}


def test_logs_of_every_step_to_a_slow_tracker(tmp_path):
    steps = [step(number, phases={**PLAIN, "logging": 0.25}) for number in range(1, 101)]
    facts = {"settings": settings(arguments={"logging_strategy": "steps", "logging_steps": 1})}
    found = logging_cost(case_in(tmp_path, steps, facts=facts))
    assert found.title == "20% of the training loop is spent in logs"
    rarer = {"train.logging_strategy": "steps", "train.logging_steps": 25}
    judged(found, cost=25, overrides=rarer, saves=24, share=0.192)
    # A hundredth allows 0.01 * 100 / 0.99 / 0.25 = 4.04 logs in 100 steps: every 24.75, so 25 steps; four stay.


def site(count, *, library=False, line=12, seconds=0.0):
    file = "/lib/transformers/trainer.py" if library else "/project/train.py"
    told = {"file": file, "line": line, "function": "compute_loss", "operator": "item", "inside_library": library}
    return {**told, "count_per_step": count, "seconds_per_step": seconds}


def census(folder, *sites, on_device=False, steps=10, **arguments):
    facts = {
        "settings": settings(arguments=arguments),
        "synchronisations": {"steps": 2, "on_device": on_device, "sites": list(sites)},
    }
    return case_in(folder, [step(number) for number in range(1, steps + 1)], facts=facts)


def test_reads_of_the_users_code_are_named_and_told_from_a_librarys(tmp_path):
    found = hidden_synchronisation(census(tmp_path, site(5.0, library=True), site(2.0), site(1.0, line=30)))
    assert found.title == (
        "your code reads tensors 3 times per step, at 2 lines, first project/train.py:12; on a CPU that costs little, "
        "on a GPU each read waits until the device is done"
    )
    judged(found, severity="warning", cost=None)
    assert [one.value for one in found.evidence] == [2.0, 1.0, 5.0]
    assert found.evidence[1].what == "reads per step at project/train.py:30 in compute_loss, item"


def test_a_library_that_reads_is_worth_knowing_on_a_device_only(tmp_path):
    reads = site(2.0, library=True)
    found = hidden_synchronisation(census(tmp_path / "a", reads, on_device=True, logging_nan_inf_filter=True))
    judged(found, severity="info", overrides={"train.logging_nan_inf_filter": False})
    assert hidden_synchronisation(census(tmp_path / "b", reads, logging_nan_inf_filter=True)) is None


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
    overrides = {"train.accelerator_config": {"non_blocking": True}, "train.dataloader_pin_memory": True}
    judged(found, saves=20 * 0.19897, overrides=overrides)


def test_pinned_batches_may_still_be_waited_for_and_small_pieces_put_together(tmp_path):
    pinned = host_to_device_copy(copied(tmp_path / "a", 0.2, pinned=True))
    assert pinned.remedies[0].overrides == {"train.accelerator_config": {"non_blocking": True}}
    pieces = host_to_device_copy(copied(tmp_path / "b", 0.2, tensors=40, size=40_000))
    assert "in many small pieces" in pieces.title
    assert not pieces.remedies[0].overrides


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
    judged(found, cost=8.0, share=0.4)  # of 20 s
    assert cpu_oversubscription(case) is None


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


def paused(phase, seconds, every, count=100):
    return [step(n, phases={**PLAIN, **({phase: seconds} if n % every == 0 else {})}) for n in range(1, count + 1)]


@pytest.mark.parametrize(("rows", "left"), [(40, 16), (4, None)])
def test_fewer_examples_than_were_evaluated(rows, left, tmp_path):
    """Not than the recipe allows."""
    steps, stated = paused("evaluation", 2.5, 20, count=40), facts(eval_strategy="no", eval_on_start=True)
    notes = [{"kind": "evaluation", "step": 0, "seconds": 2.5, "metrics": {}, "rows": rows}]
    case = case_in(tmp_path, steps, facts=stated, notes=notes, recipe="recipe: {data: {max_eval_examples: 200}}")
    first = {"train.eval_on_start": False}
    judged(evaluations_cost(case), cost=5, overrides={"data.max_eval_examples": left} if left else first)


def facts(**arguments):
    return {"settings": settings(arguments=arguments)}


def test_evaluations_that_take_a_third_are_found_with_what_rarer_ones_save(tmp_path):
    notes = [{"kind": "evaluation", "step": 10 * n, "seconds": 5.0, "metrics": {}} for n in range(1, 11)]
    steps, stated = paused("evaluation", 5.0, 10), facts(eval_strategy="steps", eval_steps=10)
    found = evaluations_cost(case_in(tmp_path, steps, facts=stated, notes=notes, price_usd_per_hour=7.2))
    # 100 s of training and 10 evaluations of 5 s: a third of 150 s.
    judged(found, cost=50, cost_usd=0.1)
    assert found.evidence[0].value == pytest.approx(1 / 3)
    # A twentieth allows 0.05 * 100 / 0.95 / 5 = 1.0526 evaluations in 100 steps: every 95 steps.
    # One evaluation stays, and the one after the last step.
    judged(found, overrides={"train.eval_strategy": "steps", "train.eval_steps": 95}, saves=40, share=40 / 150)


def test_evaluations_of_a_run_too_short_for_rarer_ones_are_to_have_fewer_examples(tmp_path):
    """40 s of training allow 0.05 * 40 / 0.95 = 2.1 s; two evaluations of 64 examples took 5: 64 * 2.1 / 5 = 26."""
    steps, stated = paused("evaluation", 2.5, 20, count=40), facts(eval_strategy="steps", eval_steps=100)
    case = case_in(
        tmp_path / "recipe",
        steps,
        facts=stated,
        recipe="recipe: {data: {max_eval_examples: 64}, evaluate: {generate: {examples: 1}}}",
    )
    judged(evaluations_cost(case), cost=5, overrides={"data.max_eval_examples": 26})
    answered = case_in(
        tmp_path / "answers",
        steps,
        facts=stated,
        recipe="recipe: {data: {max_eval_examples: 64}, evaluate: {metrics: [exact_match], generate: {examples: 8}}}",
    )
    fewer = {"data.max_eval_examples": 26, "evaluate.generate.examples": 3}
    judged(evaluations_cost(answered), cost=5, overrides=fewer)
    (remedy,) = evaluations_cost(case_in(tmp_path / "script", steps, facts=stated)).remedies
    assert remedy.what.endswith("give the trainer a smaller eval_dataset; one evaluation takes 2.50 s")


def test_checkpoints_every_second_step_are_found(tmp_path):
    stated = facts(save_strategy="steps", save_steps=2, save_only_model=False)
    found = saves_cost(case_in(tmp_path, paused("checkpointing", 2.0, 2), facts=stated))
    judged(found, cost=100, overrides={"train.save_strategy": "steps", "train.save_steps": 65}, saves=96)
    # 0.03 * 100 / 0.97 / 2 = 1.546 checkpoints in 100 steps: every 64.7, so 65 steps.
    assert found.remedies[1].overrides == {"train.save_only_model": True}
