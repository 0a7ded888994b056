from __future__ import annotations

import pytest

from hf_efficient.jobs.job import standalone_recipe
from hf_efficient.recipe.files import list_recipes
from hf_efficient.recipe.load import load_recipe


@pytest.mark.parametrize("name", [one.name for one in list_recipes()])
def test_it_loads_to_the_same_recipe(name, tmp_path):
    overrides = ["train.learning_rate=3e-4", "data.train.0.weight=2.0", "evaluate.metrics=[]"]
    recipe = load_recipe(name, [*overrides, "existing_output=overwrite"])
    path = tmp_path / "alone.yaml"
    path.write_text(standalone_recipe(recipe), encoding="utf-8")
    alone = load_recipe(path)
    assert alone.resolved() == {**recipe.resolved(), "existing_output": "refuse"}


def test_defaults_are_left_out(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("name: a\nmodel: {id: m}\ndata: {train: [{path: x}, {path: y, weight: 3}]}\noutput_dir: o\n")
    text = standalone_recipe(load_recipe(path, ["distributed.nodes=2"]))
    assert text == (
        "name: a\nmodel:\n  id: m\ndata:\n  train:\n  - path: x\n  - path: y\n    weight: 3.0\n"
        "distributed:\n  nodes: 2\noutput_dir: o\n"
    )
