from __future__ import annotations

import pytest

from hf_efficient.launch.world import launch_contradiction
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.schema import Recipe


def recipe(processes: int | str) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "tiny",
            "model": {"id": "some/model"},
            "data": {"train": [{"path": "chats.jsonl"}]},
            "distributed": {"processes": processes},
            "output_dir": "out",
        }
    )


@pytest.mark.parametrize(("processes", "world_size"), [(1, 1), (2, 2), ("auto", 1), ("auto", 4)])
def test_agreement(processes, world_size):
    assert launch_contradiction(recipe(processes), world_size) is None


def test_a_recipe_that_does_not_say_leaves_it_to_the_launch():
    assert launch_contradiction(load_recipe("quickstart/qlora"), 4) is None


def test_fewer_processes_than_the_recipe_says():
    assert launch_contradiction(recipe(2), 1) == (
        "distributed.processes: is 2, but 1 process was started. Start with `hf-efficient train`, which derives the"
        " launch from the recipe; or pass --num_processes=2 --multi_gpu to `accelerate launch`; or write"
        " distributed.processes=1."
    )


def test_more_processes_than_the_recipe_says():
    assert launch_contradiction(recipe(1), 4) == (
        "distributed.processes: is 1, but 4 processes were started. Start with `hf-efficient train`, which derives the"
        " launch from the recipe; or pass --num_processes=1 to `accelerate launch`; or write distributed.processes=4."
    )


def test_the_place_where_the_recipe_says_it_is_told():
    said = launch_contradiction(load_recipe("quickstart/qlora", ["distributed.processes=3"]), 2)
    assert said is not None
    assert said.startswith(
        "command line: distributed.processes=3: distributed.processes: is 3, but 2 processes were started. "
    )
