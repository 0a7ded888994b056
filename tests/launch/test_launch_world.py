from __future__ import annotations

import pytest

from hf_efficient.errors import RecipeError, SetupError
from hf_efficient.launch.started import launch_contradiction, started_recipe
from hf_efficient.recipe.load import change_recipe, load_recipe
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


def on_machines(nodes: int, processes: int | str = "auto") -> Recipe:
    return Recipe.model_validate(
        {**recipe(processes).model_dump(), "distributed": {"processes": processes, "nodes": nodes}}
    )


def test_processes_are_counted_on_each_machine():
    assert launch_contradiction(on_machines(2, 8), 16, nodes=2) is None
    said = launch_contradiction(on_machines(2, 8), 8, nodes=2)
    assert said is not None
    assert said.startswith("distributed.processes: is 8 on each of 2 machines, but 8 were started in all.")


def test_fewer_machines_than_the_recipe_says():
    said = launch_contradiction(on_machines(2), 8, nodes=1)
    assert said is not None
    assert said.startswith("distributed.nodes: is 2, but the processes of 1 were started.")
    assert launch_contradiction(on_machines(2), 8, nodes=2) is None


def test_the_accumulation_of_the_processes_that_were_started():
    """A bare ``accelerate launch`` of a recipe that does not say how many: the environment does."""
    loaded = load_recipe("quickstart/lora", ["distributed.global_batch_size=64"])  # 4 rows
    found = [started_recipe(loaded, {"WORLD_SIZE": str(number)}) for number in (1, 2, 8)]
    assert [one.train["gradient_accumulation_steps"] for one in found] == [16, 8, 2]
    assert started_recipe(loaded, {}).train["gradient_accumulation_steps"] == 16
    with pytest.raises(RecipeError, match=r"is 64, which 12 sequences at a time .* 4 x 3 processes\) do not divide"):
        started_recipe(loaded, {"WORLD_SIZE": "3"})


def test_launchers_that_disagree_are_told_before_the_processes_meet():
    two = load_recipe("quickstart/lora", ["distributed.processes=2"])
    with pytest.raises(SetupError, match=r"distributed\.processes: is 2, but 3 processes were started"):
        started_recipe(two, {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"})
    with pytest.raises(SetupError, match=r"distributed\.strategy: is zero3, but the launcher started one process"):
        started_recipe(load_recipe("quickstart/lora", ["distributed.strategy=zero3"]), {})
    assert started_recipe(two, {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}) is two


def test_a_changed_recipe_says_no_more_than_before():
    changed = change_recipe(load_recipe("quickstart/qlora"), {"adapter.quantization.compute_dtype": "float32"})
    assert launch_contradiction(changed, 4) is None
