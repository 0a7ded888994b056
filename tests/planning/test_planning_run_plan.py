"""The plan of a run on a GPU and on a CPU that was calibrated, neither of which need be here."""

from types import SimpleNamespace

import datasets
import pytest
import torch
from trl import SFTConfig

from hf_efficient.planning import gpu
from hf_efficient.planning.plan import plan_run
from hf_efficient.profilers.calibration import save_calibration
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.device import Calibration, MatmulRate


def recipe(model, distributed=None, dtype="auto", **train):
    train = {"max_steps": 4, "max_length": 96, "per_device_train_batch_size": 2, "bf16": True, **train}
    return Recipe(
        name="tiny",
        model={"id": str(model), "dtype": dtype},
        adapter={"method": "full"},
        data={"train": [{"path": "x"}]},
        train=train,
        distributed=distributed or {},
        output_dir="x",
    )


def arguments(device, world_size=1, **changed):
    own = {"max_steps": 4, "max_length": 96, "per_device_train_batch_size": 2, "save_steps": 2, "seed": 0, **changed}
    by_length = {"train_sampling_strategy": "group_by_length", "use_cpu": True, "bf16": False, "report_to": "none"}
    placed = {"device": torch.device(device), "world_size": world_size, "n_gpu": int(device == "cuda")}
    return SimpleNamespace(**SFTConfig("x", **by_length, **own).to_dict() | placed)


@pytest.fixture
def data():
    rows = [{"input_ids": [1] * length, "labels": [1] * length} for length in (60, 20, 50, 20)]
    stats = SimpleNamespace(examples=4, tokens_total=150)
    return SimpleNamespace(train=datasets.Dataset.from_list(rows), eval=None, stats=stats, eval_stats=None)


def test_on_a_known_gpu(tiny_llama_dir, data, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA L4")
    found = plan_run(recipe(tiny_llama_dir), arguments("cuda"), data, 3.6)
    (gpu,) = found.plan.gpus
    assert (gpu.name, found.run.device, found.run.fits) == ("L4", "NVIDIA L4", True)
    assert found.plan.row_tokens == 60
    # pairs of 60 and of 50: four rows are too few to sort
    assert (found.run.positions, found.run.step_tokens, found.run.steps) == (120, 110.0, 4)
    assert found.run.peak_allocated_bytes == found.plan.memory.peak_allocated_bytes
    assert found.run.peak_reserved_bytes == gpu.reserved_bytes
    assert found.run.step_seconds == gpu.step_seconds
    assert found.run.tokens_per_second == pytest.approx(110 / gpu.step_seconds)
    assert gpu.tokens_per_second == pytest.approx(75 / gpu.step_seconds)  # the others are padding
    assert found.plan.data.padding_share == pytest.approx(35 / 110)
    assert found.run.training_seconds == pytest.approx(4 * found.run.step_seconds)
    assert gpu.run_saving_seconds > 0
    assert gpu.run_seconds == pytest.approx(found.run.training_seconds + gpu.run_saving_seconds)
    assert found.run.training_cost_usd == pytest.approx(found.run.training_seconds * 0.001)
    assert found.run.training_energy_joules == pytest.approx(found.run.training_seconds * 72)  # an L4 has 72 W
    assert found.run.reasons == {}


def test_two_processes_do_twice_the_tokens_and_wait_for_each_other(tiny_llama_dir, data, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA L4")
    plans = [plan_run(recipe(tiny_llama_dir), arguments("cuda", world_size=n), data, None) for n in (1, 2)]
    one, two = (plan.run for plan in plans)
    waits = plans[1].plan.gpus[0].exposed_communication_seconds
    assert waits > 0
    assert two.step_tokens == 2 * one.step_tokens
    assert two.step_seconds == pytest.approx(one.step_seconds + waits)
    assert two.training_energy_joules == pytest.approx(
        2 * one.training_energy_joules * two.step_seconds / one.step_seconds
    )
    assert two.categories["communication"] == one.categories["gradients"]  # DDP's second copy, in its buckets
    assert two.peak_allocated_bytes > one.peak_allocated_bytes
    assert two.training_cost_usd is None
    assert two.reasons == {"cost": "no price is known: set cost.price_usd_per_hour"}


HALF = {"zero3": 35_168, "fsdp2": 35_168 + 2 * 32}
"""Bytes in bfloat16 of half of 35,168 weights; FSDP2 cuts 259 rows of embedding and head, of 32 numbers, into 130."""


@pytest.mark.parametrize("strategy", ["zero3", "fsdp2"])
def test_a_rank_is_planned_by_what_it_holds_when_it_is_counted(tiny_llama_dir, data, monkeypatch, strategy):
    """FSDP2 keeps whole gradients from one micro-batch to the next, and a share when the optimizer steps."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA L4")
    two = {"strategy": strategy, "processes": 2}
    wanted = recipe(tiny_llama_dir, two, "bfloat16", gradient_accumulation_steps=2, bf16=False)
    args = arguments("cuda", world_size=2, gradient_accumulation_steps=2)
    found = plan_run(wanted, args, data, 3.6)
    held = found.run.categories
    half, counts = HALF[strategy], 2 if strategy == "zero3" else 21  # of flat tensors, or of all
    assert held["weights"] == half + 32  # a rotary table of 8 numbers is whole
    # under ZeRO-3 beside a share the head's of 259 x 32, more than a bucket of 32 x 32, until the final norm's is made
    assert held["gradients"] == half + ((259 * 32 + 32) * 2 if strategy == "zero3" else 0)
    assert held["optimizer_state"] == 2 * half + 4 * counts
    assert found.run.fits
    assert found.run.training_seconds is not None
    assert (found.plan.ranks.strategy, found.plan.ranks.count) == (strategy, 2)


def test_nothing_is_offloaded_from_a_cpu(tiny_llama_dir, data):
    counts = []
    for offloads in (False, True):
        offload = {"optimizer": offloads, "parameters": offloads}
        wanted = recipe(tiny_llama_dir, {"strategy": "zero3", "processes": 2, "offload": offload})
        counts.append(plan_run(wanted, arguments("cpu", world_size=2), data, None).run.categories)
    assert counts[0] == counts[1]
    assert counts[0]["optimizer_state"] > counts[0]["weights"] > 32


def test_on_a_gpu_that_nobody_knows(tiny_llama_dir, data, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA Nonesuch")
    found = plan_run(recipe(tiny_llama_dir), arguments("cuda"), data, 1.0)
    assert found.plan.gpus == []
    assert (found.run.fits, found.run.peak_reserved_bytes, found.run.step_seconds) == (None, None, None)
    assert found.run.peak_allocated_bytes == found.plan.memory.peak_allocated_bytes
    assert found.run.reasons["time"] == "no rates of NVIDIA Nonesuch are known"


def test_on_a_cpu_that_was_calibrated(tiny_llama_dir, data, monkeypatch):
    monkeypatch.setattr(gpu, "cpu_model", lambda: "Some CPU")
    before = plan_run(recipe(tiny_llama_dir), arguments("cpu"), data, 3.6).run
    assert before.step_seconds is None
    assert before.reasons["time"] == "this CPU was not calibrated. Run `hf-efficient env --calibrate` once"
    rates = tuple(MatmulRate(dtype, 1024, 1e10) for dtype in ("fp32", "bf16"))
    save_calibration(Calibration("Some CPU", "cpu", "2.13.0", "2026-01-02", rates, 1e10, 1e-5))
    after = plan_run(recipe(tiny_llama_dir), arguments("cpu"), data, 3.6).run
    assert after.peak_allocated_bytes is None
    assert after.step_seconds == pytest.approx(110 / after.tokens_per_second)
    assert after.training_cost_usd == pytest.approx(4 * after.step_seconds * 0.001)
    assert after.reasons == {"energy": "the power of Some CPU is not known"}
    assert after.categories == before.categories
    calibrated = Calibration("Some CPU", "cpu", "2.13.0", "2026-01-02", rates, 1e10, 1e-5, threads=4)
    save_calibration(calibrated)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    slower = plan_run(recipe(tiny_llama_dir), arguments("cpu"), data, 3.6).run
    assert slower.step_seconds == pytest.approx(2 * after.step_seconds)
    shared = plan_run(recipe(tiny_llama_dir), arguments("cpu", world_size=2), data, 3.6)
    assert shared.run.step_seconds is not None
    assert any("what processes on CPUs exchange takes no time" in one for one in shared.plan.assumptions)


def test_on_a_cpu_silence_on_bfloat16_is_what_the_run_has_settled(tiny_llama_dir, data):
    own = arguments("cpu")
    silent, said = (plan_run(recipe(tiny_llama_dir, bf16=value), own, data, None).run for value in (None, False))
    assert silent.categories == said.categories
