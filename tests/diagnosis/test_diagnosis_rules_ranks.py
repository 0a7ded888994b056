"""Communication that is waited for, and the wrong way to spread a model."""

from __future__ import annotations

import pytest

from hf_efficient.diagnosis.rules.communication import exposed_communication, sharding
from hf_efficient.records.findings import Abstention
from tests.diagnosis.cases import case_in, settings, step
from tests.diagnosis.memory_facts import GIB, memory
from tests.diagnosis.traces import ALL_REDUCE, MATMUL, kernels, leave_trace

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
    assert found.cost.seconds == pytest.approx(6.0)  # of 20 s
    assert found.remedies[0].overrides == {"train.gradient_accumulation_steps": 4}
    assert found.remedies[0].gain.share == pytest.approx(0.15)


def test_without_a_trace_a_cuda_run_is_not_judged_and_a_cpu_or_one_rank_has_none(tmp_path):
    assert isinstance(exposed_communication(of_two(tmp_path / "a")), Abstention)
    assert exposed_communication(of_two(tmp_path / "b", device="cpu")) is None
    assert exposed_communication(case_in(tmp_path / "c", [step()])) is None


def test_covered_communication_is_no_finding(tmp_path):
    covered = [*kernels((MATMUL, 0, 1000, 0)), *kernels((ALL_REDUCE, 300, 700, 2), first=10, stream=20)]
    assert exposed_communication(of_two(tmp_path, covered)) is None


SIZES = {"weights": 2 * GIB, "gradients": GIB, "optimizer_state": 2 * GIB}


def test_a_model_that_would_fit_whole_is_not_to_be_spread(tmp_path):
    model = {"parameters": 100, "trainable_parameters": 100}
    found = sharding(
        of_two(tmp_path, EXPOSED, peak=8 * GIB, reserved=9 * GIB, sizes=SIZES, recipe=SHARDED, model=model)
    )
    # 8 GiB and another 5 GiB of the other rank.
    assert "spread over 2 ranks (fsdp2), and would fit whole: 13.00 GiB of 16.00 GiB" in found.title
    assert found.remedies[0].overrides == {"distributed.strategy": "ddp"}
    # 30% of the time are exposed; DDP sends 2 in place of 3.
    assert found.remedies[0].gain.share == pytest.approx(0.1)
    assert found.severity == "warning"


def test_what_it_costs_to_spread_it_is_not_known_without_a_trace(tmp_path):
    found = sharding(of_two(tmp_path, peak=8 * GIB, reserved=9 * GIB, sizes=SIZES, fsdp="full_shard"))
    assert found.severity == "info"
    assert found.remedies[0].gain is None
    assert found.remedies[0].overrides == {}


def test_a_model_that_does_not_fit_whole_is_rightly_spread(tmp_path):
    sizes = {**SIZES, "optimizer_state": 4 * GIB}
    assert sharding(of_two(tmp_path, peak=9 * GIB, reserved=9 * GIB, sizes=sizes, recipe=SHARDED)) is None


def test_a_model_that_hardly_fits_each_rank_can_be_spread(tmp_path):
    sizes = {"weights": 4 * GIB, "gradients": 2 * GIB, "optimizer_state": 4 * GIB}
    found = sharding(of_two(tmp_path / "a", peak=14 * GIB, reserved=15 * GIB, sizes=sizes))
    assert found.severity == "info"
    assert "zero2" in found.remedies[0].what
    assert found.remedies[0].gain.bytes == 3 * GIB
    frozen = {"weights": 12 * GIB, "gradients": MIB, "optimizer_state": MIB}
    found = sharding(of_two(tmp_path / "b", peak=14 * GIB, reserved=15 * GIB, sizes=frozen))
    assert "fsdp2" in found.remedies[0].what
    assert sharding(of_two(tmp_path / "c", peak=8 * GIB, reserved=9 * GIB, sizes=sizes)) is None


def test_memory_that_was_not_counted_is_not_judged(tmp_path):
    assert isinstance(sharding(of_two(tmp_path, fsdp="full_shard")), Abstention)
