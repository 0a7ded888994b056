"""When a knob applies, and what it changes."""

from typing import Any

import pytest

from hf_efficient.recipe.rules.settings import Settings
from hf_efficient.recipe.train_fields import train_fields
from hf_efficient.records.tuning import Prediction, TrialRun
from hf_efficient.trials import knobs
from hf_efficient.trials.knobs import KNOBS, Here, Pauses
from tests.conftest import small_recipe

NAMED = {knob.name: knob for knob in KNOBS}
CHECKPOINTED = "train.gradient_checkpointing_kwargs"
SELECTIVE = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"selective": True}}
ROWS, ACCUMULATED = "train.per_device_train_batch_size", "train.gradient_accumulation_steps"


def here(train: Any = (), run: Any = (), **sections: Any) -> Here:
    """4 rows of 150 tokens, padded to 512, accumulated twice; a step of 2 s on a CPU with bfloat16."""
    held = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_length": 512, "bf16": False}
    recipe = small_recipe(**{"adapter": {"method": "lora"}, **sections}, train={**held, **dict(train)})
    measured = {
        "step_seconds": [2.0] * 6, "step_tokens": [1200] * 6, "step_positions": [4096] * 6, "row_tokens": 150.0,
        "device": "cpu", "fast_bfloat16": True, "weights": "float32",
    }  # fmt: skip
    return Here(Settings(recipe, train_fields("sft")), TrialRun(**{**measured, **dict(run)}), Pauses(4.0, 0.5))


def proposed(name: str, place: Here) -> dict[str, Any] | None:
    return NAMED[name].propose(place)


def test_packs_hold_about_as_many_tokens_in_a_step():
    # 8 rows of 150 tokens are 1,200, of which 2.3 rows of 512 hold
    changes = proposed("packing", here({"pad_to_multiple_of": 512}))
    assert changes == {
        "train.packing": True,
        ROWS: 1,
        ACCUMULATED: 2,
        "train.pad_to_multiple_of": None,
        "model.attn_implementation": "auto",
    }
    assert proposed("packing", here({"packing": True})) is None
    assert proposed("packing", here(run={"row_tokens": 400.0})) is None


def test_only_forward_and_backward_lose_their_padding():
    left = NAMED["packing"].time_left(here(run={"model_share": 0.5}))
    assert left == pytest.approx(1 - 0.5 * (1 - 1200 / 4096))


def test_a_named_global_batch_stays_or_follows():
    larger = here(distributed={"global_batch_size": 8})
    assert proposed("micro_batch", larger) == {ROWS: 8, ACCUMULATED: 1}
    packs = proposed("packing", larger)
    assert packs is not None
    assert packs["distributed.global_batch_size"] == packs[ROWS] * packs[ACCUMULATED]


def test_the_diagnosis_may_ask_for_a_larger_micro_batch_at_once():
    asked = Prediction("accumulation", {ROWS: 16, ACCUMULATED: 2}, 0.2)
    assert proposed("micro_batch", here({"gradient_accumulation_steps": 8}, {"predictions": [asked]})) == {
        ROWS: 16,
        ACCUMULATED: 2,
    }
    more = Prediction("small_micro_batch", {ROWS: 64, ACCUMULATED: 2}, 0.2)  # another global batch
    assert proposed("micro_batch", here(run={"predictions": [more]})) == {ROWS: 8, ACCUMULATED: 1}


@pytest.mark.parametrize(
    ("knob", "place", "changes"),
    [
        ("precision", here(), {"train.bf16": True}),
        ("precision", here(run={"fast_bfloat16": False}), None),
        ("precision", here({"bf16": True}, {"fast_bfloat16": False}), {"train.bf16": False}),
        ("precision", here(adapter={"method": "qlora"}), None),
        ("weights", here({"bf16": True}), {"model.dtype": "bfloat16"}),
        ("weights", here({"bf16": True}, adapter={"method": "full"}), None),
        ("checkpointing", here({"gradient_checkpointing": True}), {"train.gradient_checkpointing": False}),
        ("recomputation", here({"gradient_checkpointing": True}), None),
        ("offload", here(), None),
        ("offload", here(run={"device": "cuda"}), {"train.activation_offloading": True}),
        ("offload", here({"activation_offloading": True}, {"device": "cuda"}), None),
        ("fused_lora", here(run={"device": "cuda"}), None),
        ("fused_lora", here(), {"adapter.fused": "auto"}),
        ("grouping", here(), {"train.train_sampling_strategy": "group_by_length"}),
        ("grouping", here(run={"step_positions": [1200] * 6}), None),
        ("padding", here({"pad_to_multiple_of": 512}), {"train.pad_to_multiple_of": None}),
        ("padding", here({"pad_to_multiple_of": 512}, {"device": "cuda"}), {"train.pad_to_multiple_of": 8}),
        ("smaller_micro_batch", here(), {ROWS: 2, ACCUMULATED: 4}),
        ("workers", here(), None),
        (
            "workers",
            here(run={"data_wait_share": 0.2}),
            {"train.dataloader_num_workers": 2, "train.dataloader_persistent_workers": True},
        ),
        ("attention", here(model={"id": "m", "attn_implementation": "eager"}), {"model.attn_implementation": "sdpa"}),
        ("compile", here(), None),
        ("compile", here(run={"device": "cuda"}), {"train.torch_compile": True}),
        ("compile", here(run={"device": "cuda"}, model={"id": "m", "compile_blocks": True}), None),
        ("compile_blocks", here(), None),
        ("compile_blocks", here(run={"device": "cuda"}), {"model.compile_blocks": True}),
        ("compile_blocks", here({"torch_compile": True}, {"device": "cuda"}), None),
        ("selective", here({"gradient_checkpointing": False}), None),
        ("selective", here({"gradient_checkpointing": True}), {CHECKPOINTED: {"selective": True}}),
        (
            "selective",
            here({"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}),
            None,
        ),
        ("selective", here(SELECTIVE), None),
        ("recomputation", here(SELECTIVE), {CHECKPOINTED: {"selective": False}}),
        ("checkpointing", here(SELECTIVE), {"train.gradient_checkpointing": False, CHECKPOINTED: None}),
        ("padding_free", here(), None),  # a length that could cut the joined rows
        ("padding_free", here({"max_length": None}), {"train.padding_free": True, "model.attn_implementation": "auto"}),
        ("padding_free", here({"max_length": None}, {"step_positions": [1200] * 6}), None),
        ("prefetch", here(run={"data_wait_share": 0.2}), None),
        (
            "prefetch",
            here({"dataloader_num_workers": 2}, {"data_wait_share": 0.2}),
            {"train.dataloader_prefetch_factor": 4},
        ),
        ("pinned_memory", here({"dataloader_pin_memory": False}), None),
        (
            "pinned_memory",
            here({"dataloader_pin_memory": False}, {"device": "cuda"}),
            {"train.dataloader_pin_memory": True},
        ),
        ("pinned_memory", here(run={"device": "cuda"}), None),
        ("threads", here(distributed={"cpu_threads": 8}), {"distributed.cpu_threads": 4}),
        ("threads", here(distributed={"cpu_threads": 1}), None),
        ("threads", here(run={"device": "cuda"}, distributed={"cpu_threads": 8}), None),
    ],
)
def test_knobs(knob, place, changes):
    assert proposed(knob, place) == changes


@pytest.mark.parametrize(("nodes", "device", "is_proposed"), [(2, "cuda", True), (1, "cuda", False), (2, "cpu", False)])
def test_cores_beside_the_gpu(nodes, device, is_proposed, tmp_path, monkeypatch):
    for number in range(nodes):
        (tmp_path / f"node{number}").mkdir()
    monkeypatch.setattr(knobs, "Path", lambda name: tmp_path)
    changes = {"distributed.cpu_affinity": True} if is_proposed else None
    assert proposed("affinity", here(run={"device": device})) == changes
    assert proposed("affinity", here(run={"device": device}, distributed={"cpu_affinity": True})) is None


def test_evaluations_and_saves_take_their_shares_and_the_best_checkpoint_keeps_its_evaluation():
    often = {"eval_strategy": "steps", "eval_steps": 5, "save_steps": 5}
    data = {"train": [{"path": "x"}], "eval_fraction": 0.1}
    # 4 s of evaluation in 5% of the time, 2 s a step: 38 steps; a save takes 0.5 s, 8.1 steps
    assert proposed("cadence", here(often, data=data)) == {"train.eval_steps": 40, "train.save_steps": 9}
    best = here({**often, "load_best_model_at_end": True}, data=data)
    assert proposed("cadence", best) == {"train.eval_steps": 40, "train.save_steps": 40}
    assert proposed("cadence", here(often, {"steps": 60}, data=data)) == {"train.eval_steps": 15, "train.save_steps": 9}
    assert proposed("cadence", here({"eval_strategy": "no", "save_strategy": "no"})) is None


@pytest.mark.parametrize(
    ("strategy", "processes", "less", "more"),
    [
        ("auto", 1, None, None), ("auto", 2, None, "fsdp2"), ("fsdp2", 2, "ddp", None), ("zero2", 2, "ddp", "zero3"),
        ("zero3", 2, "zero2", None),
    ],
)  # fmt: skip
def test_strategies_next_to_the_own(strategy, processes, less, more):
    place = here(run={"processes": processes}, distributed={"strategy": strategy})
    for name, other in (("less_sharding", less), ("more_sharding", more)):
        assert proposed(name, place) == ({"distributed.strategy": other} if other else None)


def test_a_global_batch_that_follows_is_of_all_processes():
    packs = proposed("packing", here(run={"processes": 2}, distributed={"global_batch_size": 16}))
    assert packs is not None
    assert packs["distributed.global_batch_size"] == 2 * packs[ROWS] * packs[ACCUMULATED]
