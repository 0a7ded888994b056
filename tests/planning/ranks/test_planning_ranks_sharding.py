"""From ``distributed`` to the settings of the arithmetic."""

from __future__ import annotations

import pytest

from hf_efficient.errors import RecipeError
from hf_efficient.estimate.parallelism import Sharding
from hf_efficient.planning.ranks.sharding import sharding_of


@pytest.mark.parametrize(
    ("distributed", "expected"),
    [
        ({}, Sharding("none", 1)),
        ({"processes": 4}, Sharding("ddp", 4)),
        ({"processes": "auto"}, Sharding("none", 1)),
        ({"processes": 1, "strategy": "ddp"}, Sharding("none", 1)),
        ({"processes": 8, "strategy": "fsdp2"}, Sharding("fsdp2", 8)),
        (
            {"processes": 2, "strategy": "zero3", "offload": {"optimizer": True, "parameters": True}},
            Sharding("zero3", 2, offload_optimizer=True, offload_parameters=True),
        ),
    ],
)
def test_what_a_recipe_says(recipe, distributed, expected):
    assert sharding_of(recipe(distributed=distributed)) == expected


def test_micro_batches_and_processes_of_a_launch(recipe):
    wanted = recipe(train={"gradient_accumulation_steps": 3}, distributed={"processes": "auto"})
    assert sharding_of(wanted, 4) == Sharding("ddp", 4, micro_batches=3)


def test_what_cannot_be_names_the_key(recipe):
    """A recipe made in Python, which no rule has seen."""
    wanted = recipe(distributed={"processes": 2, "offload": {"parameters": True}})
    with pytest.raises(RecipeError, match="distributed: offload_parameters with 'ddp'; it takes zero3 or fsdp2"):
        sharding_of(wanted)
