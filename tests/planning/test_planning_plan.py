"""A recipe in, its plan out."""

import json

import pytest
import torch
from flop_counting import counting
from planned_recipes import device, tiny_recipe
from transformers import AutoConfig, AutoModelForCausalLM

from hf_efficient.errors import ModelError, RecipeError
from hf_efficient.estimate.flops import MicroBatch
from hf_efficient.model.adapter import add_adapter
from hf_efficient.model.load import quantization_config
from hf_efficient.model.work import formula_of
from hf_efficient.planning import plan as plan_module
from hf_efficient.planning.arguments import simulation_arguments
from hf_efficient.planning.plan import plan
from hf_efficient.planning.trainers import simulation_trainer
from hf_efficient.recipe.schema import QuantizationSection


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *overrides: tiny_recipe(tmp_path, *overrides)


def test_the_shape_of_a_step_and_the_parameters(recipe):
    """Embedding and head 2 x 2048 x 128; of a layer q, o 128 x 128, k, v 128 x 64, the MLP 3 x 128 x 256, two norms."""
    layer = 2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 256 + 2 * 128
    found = plan(recipe("adapter.method=full", "train.max_steps=7"), ["RTX 4090", "L4"])
    assert found.parameters == found.trained_parameters == 2 * 2048 * 128 + 2 * layer + 128
    assert (found.micro_batch_rows, found.row_tokens, found.micro_batches, found.steps) == (4, 256, 2, 7)
    assert (found.recipe, found.model, found.adapter) == ("tiny", "model", "full")
    assert {one.name for one in found.gpus} == {"RTX 4090", "L4"}
    assert found.gpus[0].tokens_per_second == pytest.approx(2 * 4 * 256 / found.gpus[0].step_seconds)
    rows_said, errors_said, saves_said, failure_said = found.assumptions
    assert [rows_said, saves_said] == [
        "every row has 256 tokens, the most that the recipe allows: shorter ones need less "
        "(data.train.0.path: chats.jsonl is not on this machine)",
        "hours and money hold 1 save of 4.7 MiB, written at 131 MB/s (an AWS gp3 volume): "
        "cost.spot.write_mb_per_second changes that",
    ]
    assert errors_said.startswith("how sure: of ")
    assert failure_said.startswith("a failure undoes about ")
    assert failure_said.endswith("one in 24 h, assumed, not measured: checkpoints.hours_between_failures changes that)")
    # r (in + out) of each linear layer: q, o 2 x 256, k, v 2 x 192, the MLP 3 x 384; twice, r is 4.
    found = plan(recipe("adapter.r=4"), ["L4"])
    assert found.trained_parameters == 2 * 4 * (2 * 256 + 2 * 192 + 3 * 384)


def test_logits_that_a_run_does_not_keep_are_said_to_be_a_piece(recipe):
    chunked, whole = (plan(recipe(f"train.loss_type={kind}"), "cpu") for kind in ("chunked_nll", "nll"))
    assert chunked.memory.categories["logits"] > 0
    said = [any("logits at the peak are a piece" in one for one in found.assumptions) for found in (chunked, whole)]
    assert said == [True, False]


def test_memory_over_the_two_steps(recipe):
    found = plan(recipe(), ["L4"])
    assert found.steps is None
    assert any("write train.max_steps=N" in remark for remark in found.assumptions)
    memory = found.memory
    held = memory.timeline
    totals = [sum(sizes) for sizes in zip(*held.categories.values(), strict=True)]
    assert len(totals) == len(held.events) == len(held.phases) <= 400
    assert max(totals) == memory.peak_allocated_bytes
    assert (held.events[totals.index(max(totals))] > held.second_step) == (memory.peak_step == 2)
    assert {"forward", "backward", "optimizer"} <= set(held.phases)
    assert held.events == sorted(held.events)
    assert set(held.categories["weights"]) == {memory.model_bytes - memory.categories["adapter"]}


def test_those_that_fit_come_first_the_cheapest_first(recipe, monkeypatch):
    names = {
        "small": device(430, name="small", aliases=()),
        "dear": device(4000, name="dear"),
        "slow": device(4000, name="slow", bandwidth_bytes_per_second=1e10),
        "unknown": device(4000, name="unknown", peak_flops_per_second={}),
    }
    monkeypatch.setattr(plan_module, "devices_of", lambda gpus: [names[name] for name in gpus])
    found = plan(recipe("cost.price_usd_per_hour=2"), list(names))
    assert [one.name for one in found.gpus] == ["dear", "slow", "unknown", "small"]
    assert [one.fits for one in found.gpus] == [True, True, True, False]
    assert found.gpus[2].usd_per_million_tokens is None


@pytest.mark.slow
def test_float16_is_simulated_in_bfloat16_and_timed_as_float16(recipe):
    (bf16,) = plan(recipe("train.bf16=true"), ["T4"]).gpus
    assert bf16.step_seconds is None
    assert (len(bf16.notes), bf16.fits) == (1, False)
    assert "With train.bf16 the run is refused there" in bf16.notes[0]
    assert not plan(recipe(), ["T4"]).gpus[0].fits
    (neither,) = plan(recipe("train.bf16=false"), ["T4"]).gpus
    assert neither.fits
    found = plan(recipe("train.fp16=true"), ["T4"])
    assert found.gpus[0].step_seconds > 0
    assert found.gpus[0].notes == []
    assert "train.fp16 is simulated in bfloat16, whose tensors are as large" in found.assumptions


def test_a_model_that_is_no_causal_one(recipe, tmp_path):
    made = recipe()
    text = json.dumps({"model_type": "t5", "d_model": 64, "vocab_size": 96, "num_layers": 2})
    (tmp_path / "model" / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=r"^model: transformers cannot build a causal language model from its config"):
        plan(made, ["L4"])


METHODS = {"full": ["adapter.method=full"], "lora": [], "qlora": ["adapter.method=qlora"]}


@pytest.mark.parametrize(
    ("method", "packing", "checkpointing"),
    [
        ("lora", True, True),
        pytest.param("full", False, False, marks=pytest.mark.slow),
        pytest.param("full", True, True, marks=pytest.mark.slow),
        pytest.param("lora", False, False, marks=pytest.mark.slow),
        pytest.param("qlora", False, True, marks=pytest.mark.slow),
        pytest.param("qlora", True, False, marks=pytest.mark.slow),
    ],
)
def test_the_flops_are_those_that_torch_counts_and_the_account_tells(recipe, tmp_path, method, packing, checkpointing):
    """Of the very same trainer with a real model and eager attention, which torch can count."""
    made = recipe(
        *METHODS[method],
        "model.attn_implementation=eager",
        "train.max_length=64",
        f"train.packing={str(packing).lower()}",
        f"train.gradient_checkpointing={str(checkpointing).lower()}",
    )
    planned = plan(made, ["L4"]).flops_per_step
    args = simulation_arguments(made, str(tmp_path / "out"))
    trainer = simulation_trainer(made, real_model(made, tmp_path, checkpointing), args, 64)
    with counting() as counted:
        trainer.train()
    formula, *_ = formula_of(trainer)
    assert planned == pytest.approx(counted.get_total_flops() / 2, rel=0.01)
    documents = [32] * 8 if packing else [64] * 4
    rows = (1, 256) if packing else (4, 64)
    _, told = formula.flops(MicroBatch(*rows, documents))
    assert planned == pytest.approx(2 * told, rel=0.01)


def real_model(recipe, tmp_path, checkpointing):
    config = AutoConfig.from_pretrained(tmp_path / "model")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="eager")
    if recipe.adapter.method == "qlora":
        model.save_pretrained(tmp_path / "saved")
        model = AutoModelForCausalLM.from_pretrained(
            tmp_path / "saved",
            dtype=torch.bfloat16,
            attn_implementation="eager",
            quantization_config=quantization_config(QuantizationSection()),
        )
    return add_adapter(model, recipe.adapter, seed=0, checkpointing=checkpointing)


def test_several_gpus(recipe):
    found = plan(recipe("adapter.method=full", "distributed.strategy=fsdp2"), ["H100 SXM"], num_gpus=4)
    alone = plan(recipe("adapter.method=full"), ["H100 SXM"])
    assert (found.ranks.count, found.ranks.strategy, found.ranks.host_bytes) == (4, "fsdp2", 0)
    assert alone.ranks is None
    assert found.micro_batches == alone.micro_batches
    assert found.flops_per_step == 4 * alone.flops_per_step
    gpu = found.gpus[0]
    assert gpu.tokens_per_second == pytest.approx(4 * 2 * 4 * 256 / gpu.step_seconds)
    assert any(told.startswith("FSDP2") for told in found.assumptions)


def test_what_is_offloaded(recipe):
    """Moments, copy and gradient in float32 of all weights, whatever the number of ranks."""
    offloaded = ["adapter.method=full", "distributed.strategy=zero2", "distributed.offload.optimizer=true"]
    found = plan(recipe(*offloaded, "train.optim=adamw_torch"), ["H100 SXM"], num_gpus=4)
    assert found.ranks.offloaded == ["optimizer"]
    assert found.ranks.host_bytes == pytest.approx(16 * found.parameters, rel=0.01)
    settings = ["distributed.strategy=zero3", "distributed.offload.optimizer=true", "train.optim=adamw_torch"]
    settings = ["adapter.method=full", *settings]
    beside = plan(recipe(*settings), ["H100 SXM"], num_gpus=4)
    found = plan(recipe(*settings, "distributed.offload.nvme_path=/disk"), ["H100 SXM"], num_gpus=4)
    assert (beside.ranks.disk_bytes, found.ranks.host_bytes) == (0, 0)
    assert found.ranks.disk_bytes == beside.ranks.host_bytes > 16 * found.parameters
    assert beside.gpus[0].step_seconds is not None
    (gpu,) = found.gpus
    assert gpu.fits
    assert gpu.step_seconds is None
    assert any("nvme_path" in note for note in gpu.notes)


@pytest.mark.parametrize("number", [0, -1])
def test_no_gpu_is_an_error_that_names_the_key(recipe, number):
    with pytest.raises(RecipeError, match=r"distributed\.processes"):
        plan(recipe(), ["L4"], num_gpus=number)


def test_float16_weights_mixed_with_float16_are_planned(recipe):
    half = ("train.fp16=true", "train.bf16=false", "adapter.method=qlora")
    one, other = (plan(recipe(*half, f"model.dtype={dtype}"), ["T4"]).gpus[0] for dtype in ("float16", "bfloat16"))
    assert one.step_seconds == other.step_seconds
    assert one.needed_bytes == other.needed_bytes
