"""Plans against published figures: every case is a recipe, and says where its figure is from."""

import re

import published
import pytest
from published import HEADS, NOT_COMPARED, RECIPES, HeadCase, RecipeCase

from hf_efficient.facts.tables import accelerator


def test_every_figure_has_a_source_in_a_revision_that_stays():
    for case in (*RECIPES, *HEADS):
        in_a_revision = re.fullmatch(r"https://github\.com/[\w./-]+/blob/[0-9a-f]{40}/[\w./-]+", case.source)
        assert in_a_revision or case.source == published._UNSLOTH
    assert len({(case.name, case.source) for case in RECIPES}) == len(RECIPES)
    assert all(case.differs for case in RECIPES)
    assert all(NOT_COMPARED.values())


@pytest.mark.parametrize("case", RECIPES, ids=lambda case: case.name)
def test_every_case_is_a_recipe_that_says_what_its_name_says(case, tmp_path):
    recipe = published.recipe_of(case, tmp_path)
    assert accelerator(case.gpu).memory_bytes >= case.published_bytes
    rows, length = re.search(r"(\d+) x ([\d,]+)", case.name).groups()
    assert recipe.train["per_device_train_batch_size"] == int(rows)
    assert recipe.train["max_length"] == int(length.replace(",", ""))
    assert (recipe.train.get("loss_type") == "chunked_nll") == ("chunked loss" in case.name)
    assert recipe.train["gradient_checkpointing"] == ("checkpointed" in case.name)
    assert recipe.adapter.method == re.search(r"\b(full|qlora|lora)\b", case.name.lower())[1]
    assert recipe.data.eval == []


def test_a_plan_is_held_against_the_figure(tiny_llama):
    overrides = ["train.packing=false", "train.max_length=64", "data.eval=[]", "evaluate.metrics=[]"]
    overrides += ["train.eval_strategy=no"]
    case = RecipeCase("tiny", "here", 2**20, "llama3.2-1b/full", overrides, "RTX 4090", "all of it", config=tiny_llama)
    found = published.planned(case)
    assert found["ratio"] == found["predicted_bytes"] / 2**20
    assert found["predicted_needed_bytes"] > found["predicted_bytes"]
    assert sum(found["predicted_categories"].values()) == found["predicted_bytes"]
    assert found["case"]["config"] == tiny_llama


def test_a_head_by_hand():
    """Two heads and one's gradient, the values and theirs; log-softmax and two gradients of it; labels of 8 bytes."""
    tokens, hidden, vocabulary = 512, 64, 1024
    found = published.simulated_head(HeadCase(tokens, 1e6, "here", hidden, vocabulary))
    by_hand = 2 * (3 * vocabulary * hidden + 2 * tokens * hidden + 3 * tokens * vocabulary) + 8 * tokens
    assert 0 <= found["predicted_bytes"] - by_hand < 16  # a loss, a gradient of it and a count
    assert found["ratio"] == found["predicted_bytes"] / 1e6


def test_a_gpus_figures_of_a_head_are_met():
    """What is missing is the same for all lengths: two workspaces of cuBLAS, 8.125 MiB each."""
    found = [published.simulated_head(case) for case in HEADS]
    missing = [one["published_bytes"] - one["predicted_bytes"] for one in found]
    assert missing == pytest.approx([2 * 8.125 * 2**20] * 4, abs=2**12)
