"""Whether a value was set, and where."""

from __future__ import annotations

from hf_efficient.recipe.load import change_recipe, load_recipe
from hf_efficient.recipe.schema import Recipe, is_set, told_where


def test_file_flag_and_nobody(write):
    recipe = load_recipe(write(), ["distributed.processes=2", "distributed.global_batch_size=16"])
    assert told_where(recipe, "model.id").endswith("r.yaml:2: ")
    assert told_where(recipe, "distributed.processes") == "command line: distributed.processes=2: "
    assert told_where(recipe, "distributed.nodes") == ""  # a default
    assert told_where(recipe, "train.gradient_accumulation_steps") == ""  # derived
    assert (
        told_where(Recipe(name="t", model={"id": "m"}, data={"train": [{"path": "a"}]}, output_dir="o"), "name") == ""
    )


def test_set_or_not(write):
    recipe = load_recipe(write(), ["distributed.processes=2"])
    for one in (recipe, change_recipe(recipe, {"model.id": "n"})):  # which gives every key
        assert (is_set(one, "distributed.processes"), is_set(one, "distributed.nodes")) == (True, False)
    plain = {"name": "t", "model": {"id": "m"}, "data": {"train": [{"path": "a"}]}, "output_dir": "o"}
    built = Recipe(**plain, distributed={"nodes": 1})
    assert (is_set(built, "distributed.processes"), is_set(built, "distributed.nodes")) == (False, True)
