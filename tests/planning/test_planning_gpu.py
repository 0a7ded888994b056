"""A training on one accelerator: memory, time, and which accelerators are not beaten."""

import dataclasses

import pytest
from planned_recipes import MIB, device

from hf_efficient.estimate.allocator import CONTEXT_BYTES, cublas_workspace_bytes
from hf_efficient.estimate.roofline import Roofs
from hf_efficient.estimate.sharding import ModelStates, Sharding
from hf_efficient.planning import gpu as gpu_module
from hf_efficient.planning.gpu import Demand, PlanError, plan_error, planned_gpu, with_frontier
from hf_efficient.planning.ranks import rank as exchange_module
from hf_efficient.planning.simulation import Rank
from hf_efficient.records.device import OperatorWork
from hf_efficient.records.plan import PlannedGpu, PlannedSpot

GIB = 2**30
WORKSPACES = 2 * cublas_workspace_bytes((8, 0))
"""8.125 MiB each: of the forward's thread and of the backward's."""


@pytest.fixture(autouse=True)
def _roofs(monkeypatch):
    """1e14 FLOP/s, 1e12 bytes/s, nothing else."""
    roofs = Roofs({"bf16": 1e14}, {"bf16": 1e14}, 1e12, 0.0, 0.0)
    monkeypatch.setattr(gpu_module, "accelerator_roofs", lambda held, calibration: roofs)


def work(flops, moved, dtype="bf16", family="matmul"):
    return OperatorWork("aten::mm", family, dtype, flops, moved, 0, 1)


ANY = [work(2e14, 0)]


def demand(*sizes, operators=ANY, tokens=1000, steps=None, **more):
    """So many bytes are there before the first step, the rest are allocated one after the other and stay."""
    return Demand(list(enumerate(sizes)), 1, operators, tokens, steps, **more)


def planned(asked, mebibytes=4096, **changes):
    return planned_gpu(asked, device(mebibytes, **changes))


def test_memory_is_what_the_allocator_reserves_and_the_context():
    """1 GiB and 100 MiB are segments of their own; the two workspaces, 8.125 MiB each, share one of 20 MiB."""
    found = planned(demand(GIB, 100 * MIB))
    assert WORKSPACES == 2 * 8.125 * MIB
    assert found.reserved_bytes == GIB + 120 * MIB
    assert found.needed_bytes == GIB + 120 * MIB + CONTEXT_BYTES
    assert found.allocated_bytes == GIB + 100 * MIB + WORKSPACES
    assert found.fits
    assert found.allocation_retries == 0
    needed = (GIB + 120 * MIB + CONTEXT_BYTES) / MIB
    assert planned(demand(GIB, 100 * MIB), needed).fits
    short = planned(demand(GIB, 100 * MIB), needed - 1)
    assert (short.fits, short.reserved_bytes, short.needed_bytes) == (False, None, needed * MIB)
    assert short.allocated_bytes is None
    # 100 MiB freed are of no use for 200 MiB: on a device for 300 and the workspaces they are given back.
    asked = Demand([(0, 100 * MIB), (1, 100 * MIB), (1, -100 * MIB), (2, 200 * MIB)], 1, ANY, 1000, None)
    tight = CONTEXT_BYTES / MIB + 300 + 20
    found = planned(asked, tight)
    assert (found.fits, found.allocation_retries, found.reserved_bytes) == (True, 1, 320 * MIB)
    assert planned(asked).reserved_bytes == 420 * MIB


def test_an_interval_that_crosses_the_limit_is_tight(monkeypatch):
    """Published trainings were within a tenth of their memory, and between 0.8 and 1.25 times their speed."""
    kinds = []

    def error(figure, **kind):
        kinds.append((figure, kind))
        return PlanError(-0.1, 0.1, 9) if figure == "memory" else PlanError(-0.2, 0.25, 9)

    monkeypatch.setattr(gpu_module, "plan_error", error)
    found = planned(demand(GIB, adapted=True))
    assert kinds == [("memory", {"adapted": True, "several": False}), ("speed", {"adapted": True, "several": False})]
    needed = found.needed_bytes
    assert found.needed_range_bytes == pytest.approx((0.9 * needed, 1.1 * needed), abs=1)
    assert found.tokens_per_second_range == pytest.approx((400, 625))
    seen = {share: planned(demand(GIB), share * needed / MIB) for share in (0.85, 0.95, 1.05, 1.15)}
    assert {share: (one.fits, one.tight) for share, one in seen.items()} == {
        0.85: (False, False),
        0.95: (False, True),
        1.05: (True, True),
        1.15: (True, False),
    }
    lacking = planned(demand(GIB, bf16=True), 1.05 * needed / MIB, compute_capability=(7, 5))
    assert (lacking.fits, lacking.tight) == (False, False)


@pytest.mark.parametrize("figure", ["memory", "speed"])
@pytest.mark.parametrize("adapted", [True, False])
@pytest.mark.parametrize("several", [True, False])
def test_the_errors_of_every_kind_are_known(figure, adapted, several):
    found = plan_error(figure, adapted=adapted, several=several)
    assert found.low <= found.high
    assert found.trainings >= 5
    assert PlanError(-0.25, 0.5, 3).around(8) == (6, 12)


def test_time():
    """2e14 FLOPs take 2 s, 1e12 bytes 1 s: 3 s a step."""
    found = planned(demand(GIB, operators=[work(2e14, 0), work(0, 1e12)]))
    assert found.step_seconds == pytest.approx(3.0)
    assert found.tokens_per_second == pytest.approx(1000 / 3)
    assert found.bound_shares == pytest.approx({"math": 2 / 3, "bandwidth": 1 / 3, "launch": 0.0})
    found = planned(demand(GIB, operators=[work(2e14, 0, dtype="fp32"), work(2e14, 0)], steps=10))
    assert (found.step_seconds, found.tokens_per_second) == (None, None)
    assert found.bound_shares == {}
    assert found.notes == ["no time: not known of this device: FLOP/s of matmul in fp32. Try bf16=True"]


def test_a_device_without_bfloat16_is_told_what_to_do(monkeypatch):
    roofs = Roofs({"fp16": 1e14}, {"fp16": 1e14}, 1e12, 0.0, 0.0)
    monkeypatch.setattr(gpu_module, "accelerator_roofs", lambda held, calibration: roofs)
    mixed = demand(GIB, bf16=True)
    refused = planned(mixed, compute_capability=(7, 5))
    (note,) = refused.notes
    assert "With train.bf16 the run is refused there" in note
    assert "train.fp16=true train.bf16=false" in note
    assert (refused.fits, refused.reserved_bytes, refused.step_seconds) == (False, None, None)
    assert refused.needed_bytes == planned(mixed, compute_capability=(8, 0)).needed_bytes < refused.memory_bytes
    assert planned(mixed, compute_capability=(8, 0)).fits
    emulated = planned(demand(GIB), compute_capability=(7, 5))
    assert emulated.notes == ["no time: it has no bfloat16, which is emulated at a rate that is not known"]
    assert emulated.fits
    assert planned(demand(GIB), compute_capability=(8, 0)).notes == [
        "no time: not known of this device: FLOP/s of matmul in bf16"
    ]
    half = planned(demand(GIB, operators=[work(2e14, 0, dtype="fp16")]), compute_capability=(7, 5))
    assert (half.notes, half.step_seconds) == ([], pytest.approx(2.0))


def test_the_mean_step_and_the_evaluations():
    """A simulated step of 2 s, of which the mean one takes 0.75; 1 s for a batch of an evaluation, 2.5 of them."""
    asked = demand(GIB, steps=10, step_share=0.75, evaluation=[work(1e14, 0)], evaluation_batches=2.5)
    found = planned(asked)
    assert found.step_seconds == pytest.approx(1.5)
    assert found.tokens_per_second == pytest.approx(1000 / 1.5)
    assert found.run_evaluation_seconds == pytest.approx(2.5)
    assert found.run_seconds == pytest.approx(17.5)
    assert found.bound_shares["math"] == pytest.approx(1.0)
    assert planned(demand(GIB)).run_evaluation_seconds is None


STATES = ModelStates(100_000_000, 0, 2, 2, 2, 8)


def test_several_ranks(monkeypatch):
    found = planned(demand(GIB, rank=Rank(Sharding("ddp", 4), STATES, 1)))
    assert (found.step_seconds, found.communication_seconds, found.tokens_per_second) == (None, None, None)
    assert found.fits
    assert "no time: how fast several of it communicate is not known" in found.notes
    # 200 MB of gradients on 4 ranks: 2 * 3/4 * 200 MB at 0.1 GB/s, 3 s; of 2 s of computation 4/3 s hide.
    monkeypatch.setattr(exchange_module, "collective_bandwidth", lambda name, ranks: 1e8)
    monkeypatch.setattr(exchange_module, "overhead_seconds", lambda figure: 0.0)
    asked = demand(GIB, 100 * MIB, steps=10, rank=Rank(Sharding("ddp", 4), STATES, 1), tokens=4000)
    found = planned(asked)
    assert found.step_seconds == pytest.approx(2 + 3 - 4 / 3)
    assert found.communication_seconds == pytest.approx(3)
    assert found.exposed_communication_seconds == pytest.approx(5 / 3)
    assert found.bound_shares["communication"] == pytest.approx(5 / 11)
    assert sum(found.bound_shares.values()) == pytest.approx(1)
    assert found.tokens_per_second == pytest.approx(4000 / (11 / 3))
    assert found.needed_bytes == GIB + 120 * MIB + CONTEXT_BYTES + 392 * MIB


def gpu(name, seconds, usd, fits=True):
    return dataclasses.replace(
        PlannedGpu(name, 2**32, 2**32, 2**31, None, fits, 0, seconds, None, {}), usd_per_million_tokens=usd
    )


def marked(*gpus):
    return [one.name for one in with_frontier(gpus) if one.on_frontier]


def test_those_that_are_not_beaten():
    gpus = [gpu("cheap", 2.0, 1.0), gpu("fast", 1.0, 3.0), gpu("slow and dear", 2.0, 3.0), gpu("between", 1.5, 2.0)]
    assert marked(*gpus) == ["cheap", "fast", "between"]
    gpus = [gpu("too small", 1.0, 0.1, fits=False), gpu("no price", 0.5, None), gpu("no time", None, 0.1)]
    assert marked(*gpus, gpu("it", 2.0, 1.0)) == ["it"]
    # 1 s with twice the work lost is 3 s: slower than 2 s.
    lossy = PlannedSpot(1.0, "a", 2.0, 1, 1.0, 1, overhead_share=2.0)
    spot = dataclasses.replace(gpu("lossy", 1.0, 3.0), market="spot", spot=lossy)
    assert marked(spot, gpu("steady", 2.0, 2.0)) == ["steady"]
    assert marked(dataclasses.replace(spot, market="on_demand"), gpu("steady", 2.0, 2.0)) == ["lossy", "steady"]
