"""Ranks that wait: for communication, for one of them; models spread the wrong way."""

import pytest

from hf_efficient.diagnosis.rules.communication import exposed_communication, sharding
from hf_efficient.diagnosis.rules.stragglers import straggler
from hf_efficient.records.findings import Abstention
from tests.diagnosis.made import ALL_REDUCE, GIB, MATMUL, case_in, judged, kernels, leave_trace, memory, settings, step

MIB = 1 << 20
TOTAL = 16 * GIB + (426 + 342) * MIB  # 16 GiB beside context and NCCL
EXPOSED = [
    *kernels((MATMUL, 0, 400, 0), (MATMUL, 700, 1000, 1)),
    *kernels((ALL_REDUCE, 300, 700, 2), first=10, stream=20),
]
SHARDED = "recipe: {distributed: {strategy: fsdp2}}\nprovenance: {distributed.strategy: a}\n"


def of_two(tmp_path, trace=(), device="cuda", peak=0, reserved=0, sizes=None, recipe="", model=None, **arguments):
    if trace:
        leave_trace(tmp_path, trace)
    steps = [step(n, phases={"forward": 0.4, "backward": 0.6}) for n in range(1, 21)]
    facts = {
        "settings": settings(device={"type": device, "memory_bytes": TOTAL}, arguments=arguments, model=model or {}),
        "memory": memory(1000, "cuda:0", **(sizes or {})),
    }
    top = {"device_peak_allocated_bytes": peak, "device_peak_reserved_bytes": reserved}
    return case_in(tmp_path, steps, facts=facts, other_ranks={1: steps}, recipe=recipe, memory=top if peak else None)


def test_exposed_communication_is_found_in_the_trace(tmp_path):
    case = of_two(tmp_path, EXPOSED, gradient_accumulation_steps=2)
    found = exposed_communication(case)
    assert found.title == "in 30% of the time the device communicates, and computes nothing"
    judged(found, cost=6.0, overrides={"train.gradient_accumulation_steps": 4}, share=0.15)  # of 20 s


def test_without_a_trace_a_cuda_run_is_not_judged_and_a_cpu_or_one_rank_has_none(tmp_path):
    assert isinstance(exposed_communication(of_two(tmp_path / "a")), Abstention)
    assert exposed_communication(of_two(tmp_path / "b", device="cpu")) is None
    assert exposed_communication(case_in(tmp_path / "c", [step()])) is None


SIZES = {"weights": 2 * GIB, "gradients": GIB, "optimizer_state": 2 * GIB}


def test_a_model_that_would_fit_whole_is_not_to_be_spread(tmp_path):
    model = {"parameters": 100, "trainable_parameters": 100}
    held = {"peak": 8 * GIB, "reserved": 9 * GIB, "sizes": SIZES, "recipe": SHARDED, "model": model}
    found = sharding(of_two(tmp_path / "a", EXPOSED, **held))
    # 8 GiB and another 5 GiB of the other rank.
    assert "spread over 2 ranks (fsdp2), and would fit whole: 13.00 GiB of 16.00 GiB" in found.title
    judged(found, overrides={"distributed.strategy": "ddp"}, share=0.1, severity="warning")
    # 30% of the time are exposed; DDP sends 2 in place of 3.
    larger = {**SIZES, "optimizer_state": 4 * GIB}
    assert sharding(of_two(tmp_path / "b", peak=9 * GIB, reserved=9 * GIB, sizes=larger, recipe=SHARDED)) is None


def test_a_model_that_hardly_fits_each_rank_can_be_spread(tmp_path):
    sizes = {"weights": 4 * GIB, "gradients": 2 * GIB, "optimizer_state": 4 * GIB}
    found = sharding(of_two(tmp_path / "a", peak=14 * GIB, reserved=15 * GIB, sizes=sizes))
    judged(found, severity="info", frees=3 * GIB)
    assert "zero2" in found.remedies[0].what
    frozen = {"weights": 12 * GIB, "gradients": MIB, "optimizer_state": MIB}
    found = sharding(of_two(tmp_path / "b", peak=14 * GIB, reserved=15 * GIB, sizes=frozen))
    assert "fsdp2" in found.remedies[0].what
    assert sharding(of_two(tmp_path / "c", peak=8 * GIB, reserved=9 * GIB, sizes=sizes)) is None


def rank_steps(forward, backward, wait=0.01, processed=400, count=20, device=None, optimizer=0.05):
    """All of them ``forward + backward + wait + optimizer`` seconds long; the wait is for the rank's own loader."""
    phases = {"data_wait": wait, "forward": forward, "backward": backward, "optimizer": optimizer}
    loader = {"batches": 1, "wait_seconds": wait}
    more = {} if device is None else {"device_seconds": device}
    return [step(n, phases=phases, processed=processed, loader=loader, **more) for n in range(1, count + 1)]


def two(tmp_path, first, second, **device):
    facts = {"settings": settings(device={"type": "cpu", **device})}
    return case_in(tmp_path, first, other_ranks={1: second}, facts=facts)


def test_a_rank_whose_forward_and_backward_are_slow_is_named(tmp_path):
    # 0.2 s in place of 0.1 forward, and 0.4 s in place of 0.2 backward, in which rank 0 waits.
    found = straggler(two(tmp_path, rank_steps(0.1, 0.5), rank_steps(0.2, 0.4)))
    assert found.title.startswith("rank 1 is the slowest of 2: the others wait for its forward on the host, 45.5% of")
    assert found.remedies[0].gain.share == pytest.approx((0.1 + 0.2) / 0.66)
    assert found.remedies[0].what.startswith("look at rank 1: what else computes on its cores")


def test_a_rank_that_waits_for_its_own_data_is_named_though_all_wait_in_that_phase(tmp_path):
    first = rank_steps(0.1, 0.2, wait=0.01)
    for one in first:
        one["phase_seconds"]["data_wait"] = 0.31  # with the others' tokens
        one["wall_seconds"] += 0.3
    found = straggler(two(tmp_path, first, rank_steps(0.1, 0.2, wait=0.31)))
    assert "rank 1 is the slowest of 2: the others wait for its data wait on the host" in found.title
    judged(found, share=0.3 / 0.66, confidence="measured")


def test_a_rank_that_is_given_more_tokens_is_to_be_given_fewer(tmp_path):
    slow = rank_steps(0.2, 0.4, processed=800)
    found = straggler(two(tmp_path, rank_steps(0.1, 0.5), slow))
    assert found.remedies[0].what.startswith("deal the tokens out evenly")


def test_on_a_device_its_own_events_tell_the_forward(tmp_path):
    first = rank_steps(0.02, 0.5, device={"forward": 0.1})
    slow = rank_steps(0.02, 0.5, device={"forward": 0.3})
    found = straggler(two(tmp_path, first, slow, type="cuda"))
    assert "forward on the device" in found.title
    assert "clocks, temperature" in found.remedies[0].what


def test_ranks_that_take_turns_in_being_late_are_no_straggler(tmp_path):
    quick, slow = rank_steps(0.1, 0.5), rank_steps(0.2, 0.4)
    first = [slow[n] if n % 10 < 4 else quick[n] for n in range(20)]
    second = [quick[n] if n % 10 < 4 else slow[n] for n in range(20)]
    assert straggler(two(tmp_path, first, second)) is None


def test_even_ranks_and_one_alone_are_no_finding(tmp_path):
    assert straggler(two(tmp_path / "even", rank_steps(0.1, 0.2), rank_steps(0.101, 0.199))) is None
    assert straggler(case_in(tmp_path / "alone", rank_steps(0.1, 0.2))) is None


def computing(cpu_seconds):
    """Phases of like length on both ranks, as where buffers are handed out at the start of the forward."""
    return [{**one, "cpu_seconds": cpu_seconds} for one in rank_steps(0.1, 0.2)]


def test_where_ranks_wait_in_the_forward_too_cpu_time_tells_who_computes(tmp_path):
    found = straggler(two(tmp_path, computing(0.15), computing(0.29)))
    assert found.title.startswith("rank 1 is the slowest of 2: the others wait for its computation")
    # 0.14 s of each step, on one thread.
    assert found.remedies[0].gain.seconds == pytest.approx(0.14 * len(computing(0.1)), rel=0.01)
    assert [one.value for one in found.evidence[:2]] == [0.15, 0.29]


def apart(waits, count=20, device=None, **own):
    """Steps of 1 s, in which the waits for other ranks are a phase of their own."""
    phases = {"data_wait": 0.1, "forward": 0.2, "backward": 0.4, "optimizer": 0.1, **own, "communication": waits}
    more = {} if device is None else {"device_seconds": device}
    loader = {"batches": 1, "wait_seconds": 0.01}  # not asked, where the whole phase is the rank's own
    return [step(n, phases=phases, loader=loader, **more) for n in range(1, count + 1)]


def told(finding):
    return {one.what: one.value for one in finding.evidence}


@pytest.mark.parametrize("phase", ["data_wait", "forward", "backward", "optimizer"])
def test_where_waits_are_told_apart_the_phase_is_the_one_that_differs(tmp_path, phase):
    slow = {"data_wait": 0.1, "forward": 0.2, "backward": 0.4, "optimizer": 0.1}[phase] + 0.15
    found = straggler(two(tmp_path, apart(0.2), apart(0.05, **{phase: slow})))
    assert (told(found)["the rank"], told(found)["the phase"]) == (1, phase)
    assert told(found)["that a step takes longer for it"] == pytest.approx(0.15)
    judged(found, cost=0.15 * 20, confidence="measured")


def saving(seconds, waited=0.0, count=20):
    steps = apart(0.2, count)
    for one in steps[1::2]:
        one["phase_seconds"] = {**one["phase_seconds"], "checkpointing": seconds}
        one["waited_seconds"] = {"checkpointing": waited}
        one["wall_seconds"] += seconds
    return steps


def test_what_a_save_computes_is_no_slow_step(tmp_path):
    """Every second step saves, which takes its rank CPU time: the others' steps compute as much."""
    first, second = saving(0.5), saving(0.5)
    for one, other in zip(first, second, strict=True):
        saves = "checkpointing" in one["phase_seconds"]
        one["cpu_seconds"], other["cpu_seconds"] = (0.65, 1.1) if saves else (0.6, 0.61)
    assert straggler(two(tmp_path, first, second)) is None


def test_a_rank_that_saves_slowly_is_named(tmp_path):
    # Rank 0 is as long in the save, but half of it it waits: 0.5 s of its own against 1.0 in each of ten saves.
    found = straggler(two(tmp_path, saving(1.0, waited=0.5), saving(1.0)))
    assert found.title.startswith("rank 1 is the slowest of 2: the others wait for its saves")
    assert (told(found)["the rank"], told(found)["the phase"]) == (1, "checkpointing")
    assert found.cost.seconds == pytest.approx(0.5 * 10)


def test_saves_of_a_rank_are_held_against_those_of_rank_0_which_writes_more(tmp_path):
    """0.03 s more in each second step is 1.5% of the loop; half of that is too little."""
    found = straggler(two(tmp_path, saving(0.06), saving(0.09)))
    judged(found, severity="info", cost=0.03 * 10)
    assert (told(found)["the rank"], told(found)["the phase"]) == (1, "checkpointing")
    for number, (first, second) in enumerate([(0.03, 0.045), (0.09, 0.06), (1.0, 0.01)]):
        assert straggler(two(tmp_path / str(number), saving(first), saving(second))) is None
