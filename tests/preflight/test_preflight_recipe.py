"""What a proof makes of recipes is a recipe, short and silent."""

from __future__ import annotations

import pytest

from hf_efficient.preflight.launches import preflight_folder, proof_recipe
from hf_efficient.recipe.files import shipped_files, shipped_root
from hf_efficient.recipe.load import load_recipe

SHIPPED = sorted(shipped_files(shipped_root()))[::4]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_can_be_proven(name):
    recipe = load_recipe(name)
    short = proof_recipe(recipe, 8)
    assert short.train["max_steps"] == 2
    assert short.train["gradient_accumulation_steps"] == 2
    for key in ("per_device_train_batch_size", "max_length", "gradient_checkpointing", "optim", "packing"):
        assert short.train.get(key) == recipe.train.get(key)
    assert (short.model, short.adapter, short.data, short.distributed) == (
        recipe.model, recipe.adapter, recipe.data, recipe.distributed,
    )  # fmt: skip


def test_what_would_wait_tell_or_stand_still_is_off(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("name: t\nmodel: {id: m}\ndata: {train: [{path: a}], eval_fraction: 0.1}\noutput_dir: out\n")
    overrides = [
        "train.eval_strategy=steps", "train.save_strategy=steps", "train.load_best_model_at_end=true",
        "evaluate.early_stopping.patience=2", "efficiency.budget.usd=1", "train.warmup_steps=50",
        "train.lr_scheduler_type=reduce_lr_on_plateau", "train.report_to=all", "train.push_to_hub=true",
        "train.train_sampling_strategy=group_by_length", "train.eval_on_start=true",
        "efficiency.profile.nvtx=true", "train.gradient_accumulation_steps=1",
    ]  # fmt: skip
    recipe = load_recipe(path, overrides)
    short = proof_recipe(recipe, 1)
    told = {name: short.train[name] for name in ("eval_strategy", "save_strategy", "report_to", "lr_scheduler_type")}
    assert told == {"eval_strategy": "no", "save_strategy": "no", "report_to": "none", "lr_scheduler_type": "constant"}
    assert (short.train["warmup_steps"], short.train["gradient_accumulation_steps"]) == (0, 1)
    assert (short.train["push_to_hub"], short.train["eval_on_start"]) == (False, False)
    assert short.train["train_sampling_strategy"] == "sequential"
    assert (short.evaluate.early_stopping, short.efficiency.budget) == (None, None)
    assert not short.efficiency.profile.nvtx
    assert preflight_folder(recipe).parent == preflight_folder(short).parents[2]  # in the run's own directory


def test_a_global_batch_is_not_proven_in_full():
    """64 sequences of 4 rows on 2 processes are 8 micro-batches, of which 2 are enough."""
    recipe = load_recipe("quickstart/lora", ["distributed.processes=2", "distributed.global_batch_size=64"])
    short = proof_recipe(recipe, recipe.train["gradient_accumulation_steps"])
    assert (short.train["gradient_accumulation_steps"], short.distributed.global_batch_size) == (2, None)
