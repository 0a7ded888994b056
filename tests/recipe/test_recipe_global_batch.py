"""``distributed.global_batch_size``: the accumulation that follows from it, and what contradicts it."""

import pytest

from hf_efficient.errors import RecipeError
from hf_efficient.jobs.job import standalone_recipe
from hf_efficient.recipe.load import change_recipe, load_recipe
from hf_efficient.recipe.rules.distributed import unnamed_batch, with_accumulation

HEAD = """\
name: t
model: {id: m}
data: {train: [{path: a}]}
output_dir: out
train: {per_device_train_batch_size: 4}
"""
KEY = "train.gradient_accumulation_steps"


@pytest.fixture
def load(write):
    def of(*distributed, train=()):
        said = [f"distributed.{one}" for one in distributed]
        return load_recipe(write(HEAD), [*said, *(f"train.{one}" for one in train)])

    return of


def accumulation(recipe):
    return recipe.train.get("gradient_accumulation_steps")


def fault(call, *arguments, **named):
    with pytest.raises(RecipeError) as raised:
        call(*arguments, **named)
    (problem,) = raised.value.problems
    return problem


def test_it_follows(load):
    for distributed, expected in (
        ([], None),
        (["global_batch_size=64"], 16),
        (["global_batch_size=64", "processes=2"], 8),
        (["global_batch_size=64", "processes=8", "nodes=2"], 1),
        (["global_batch_size=64", "processes=auto"], 16),  # as it is planned
    ):
        assert accumulation(load(*distributed)) == expected


def test_where_it_comes_from(load):
    recipe = load("global_batch_size=64", "processes=2")
    assert str(recipe.provenance[KEY]) == (
        "derived: distributed.global_batch_size / (train.per_device_train_batch_size 4 x 2 processes)"
    )
    assert not recipe.provenance[KEY].is_set
    assert "auto` counts at the start" in str(load("global_batch_size=64", "processes=auto").provenance[KEY])
    assert "gradient_accumulation" not in standalone_recipe(recipe)  # a job's recipe derives it by itself


def test_processes_that_do_not_divide_it(load):
    said = fault(load, "global_batch_size=64", "processes=3")
    assert str(said) == (
        "command line: distributed.global_batch_size=64: distributed.global_batch_size: is 64, which 12 sequences at "
        "a time (train.per_device_train_batch_size 4 x 3 processes) do not divide. Take "
        "distributed.global_batch_size=60 or 72, or other rows or processes."
    )
    said = fault(load, "global_batch_size=6", "processes=2")
    assert said.remedy == "Take distributed.global_batch_size=8, or other rows or processes."


def test_no_number_of_processes_divides_it(load):
    """Each machine has as many as are counted at the start, so that rows and machines alone must divide it."""
    said = fault(load, "global_batch_size=66", "processes=auto")
    assert "66, which 4 sequences at a time (train.per_device_train_batch_size 4 x 1 machine) do not" in said.message
    assert "68" in said.remedy
    said = fault(load, "global_batch_size=64", "processes=auto", "nodes=3")
    assert "12 sequences at a time (train.per_device_train_batch_size 4 x 3 machines)" in said.message


def test_both_are_named(load):
    assert accumulation(load("global_batch_size=64", "processes=2", train=["gradient_accumulation_steps=8"])) == 8
    said = fault(load, "global_batch_size=64", "processes=2", train=["gradient_accumulation_steps=4"])
    assert (said.key, said.message) == (
        KEY,
        "is 4, a global batch of 32 (train.per_device_train_batch_size 4 x 2 processes), but "
        "`distributed.global_batch_size` is 64.",
    )
    assert said.remedy == "Write null, which makes it 8, or distributed.global_batch_size=32."
    taken_away = [f"gradient_accumulation_steps={value}" for value in ("4", "null")]
    assert accumulation(load("global_batch_size=64", train=taken_away)) == 16


def test_both_are_named_and_the_processes_are_counted_at_the_start(load):
    for processes in ("processes=auto", "nodes=1"):  # a bare `accelerate launch` tells the number
        recipe = load("global_batch_size=64", processes, train=["gradient_accumulation_steps=4"])
        assert accumulation(with_accumulation(recipe, 4)) == 4
        assert fault(with_accumulation, recipe, 2).key == KEY
        assert fault(load, "global_batch_size=64", processes, train=["gradient_accumulation_steps=5"]).key == KEY


def test_a_launch_derives_once_more(load):
    recipe = load("global_batch_size=64", "processes=auto")
    assert [accumulation(with_accumulation(recipe, number)) for number in (1, 2, 8)] == [16, 8, 2]
    assert fault(with_accumulation, recipe, 5).where == "command line: distributed.global_batch_size=64"
    assert accumulation(recipe) == 16
    assert with_accumulation(load(), 5).train == {"per_device_train_batch_size": 4}


def test_a_changed_recipe_keeps_the_batch(load):
    recipe = load("global_batch_size=64", "processes=2")
    assert accumulation(change_recipe(recipe, {"distributed.processes": 4})) == 4
    assert accumulation(change_recipe(recipe, {"train.per_device_train_batch_size": 1})) == 32
    assert fault(change_recipe, recipe, {"train.per_device_train_batch_size": 3}).key == "distributed.global_batch_size"
    free = change_recipe(recipe, {**unnamed_batch(recipe), "train.per_device_train_batch_size": 3})
    assert (accumulation(free), free.distributed.global_batch_size) == (8, None)
    assert unnamed_batch(load()) == {}


def test_a_batch_that_grows_smaller_by_itself(load):
    said = fault(load, "global_batch_size=64", train=["auto_find_batch_size=true"])
    assert said.key == "train.auto_find_batch_size"
