"""What the variants make of recipes is a recipe."""

import pytest

from hf_efficient.recipe.files import shipped_files, shipped_root
from hf_efficient.recipe.load import load_recipe
from hf_efficient.trials.variants import VARIANTS, in_folder, varied

NAMED = {one.name: one for one in VARIANTS}
KINDS = ("llama3.2-1b/full", "/lora-ddp", "quickstart/qlora", "8x7b/qlora")
SHIPPED = [name for name in sorted(shipped_files(shipped_root())) if name.endswith(KINDS)]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_variant_of_every_shipped_recipe_is_a_recipe(name, tmp_path):
    original = in_folder(load_recipe(name), tmp_path)
    for variant in VARIANTS:
        if not variant.left_out(original):
            recipe = varied(original, variant, 15)
            assert recipe.output_dir == str(tmp_path)
            assert recipe.train["max_steps"] == (2 if variant.name == "pauses" else 15)


def test_what_follows_evaluations_gives_way_and_what_reports_is_off(recipe_file, tmp_path):
    overrides = ["train.lr_scheduler_type=reduce_lr_on_plateau", "train.report_to=all", "train.push_to_hub=true"]
    overrides += ["budget.usd=1", "evaluate.metrics=[perplexity]"]
    original = in_folder(load_recipe(recipe_file, overrides), tmp_path / "w")
    assert original.budget is None
    for variant in VARIANTS:
        if not variant.left_out(original):
            recipe = varied(original, variant, 9)
            train = recipe.train
            assert (train["report_to"], train["push_to_hub"], train["lr_scheduler_type"]) == ("none", False, "constant")
            assert (train["load_best_model_at_end"], recipe.evaluate.early_stopping) == (False, None)
            assert recipe.output_dir == str(tmp_path / "w")


def test_a_variant_of_one_process_accumulates_as_often_as_one_of_several(recipe_file, tmp_path):
    batch = ["distributed.global_batch_size=32", "train.gradient_accumulation_steps=null"]
    several = load_recipe(recipe_file, ["distributed.processes=2", *batch])
    assert several.train["gradient_accumulation_steps"] == 8  # of 2 rows on each
    alone = varied(in_folder(several, tmp_path), NAMED["forward"], 9)
    assert (alone.distributed.processes, alone.train["gradient_accumulation_steps"]) == (1, 8)
