"""A simulation's arguments, and that nothing of the process is different afterwards."""

import pytest
import torch

from hf_efficient.errors import RecipeError, SetupError
from hf_efficient.planning import arguments
from hf_efficient.planning.arguments import is_bitsandbytes, process_kept, simulation_arguments


def test_the_recipes_own_fields_stay(recipe, tmp_path):
    own = {
        "per_device_train_batch_size": 3,
        "max_length": 77,
        "learning_rate": 3e-4,
        "gradient_checkpointing": False,
        "bf16": True,
        "optim": "adafactor",
        "loss_type": "dft",
        "packing": True,
        "max_grad_norm": 0.5,
        "seed": 11,
        "weight_decay": 0.01,
    }
    found = simulation_arguments(recipe(train=own), str(tmp_path))
    assert {name: getattr(found, name) for name in own} == own
    found = simulation_arguments(recipe(train={"fp16": True, "bf16": False}), str(tmp_path))
    assert (found.fp16, found.bf16) == (False, True)


@pytest.mark.parametrize("train", [{"deepspeed": "zero3.json"}, {"fsdp": "full_shard", "fsdp_config": "fsdp.json"}])
def test_sharding_is_no_part_of_a_simulation(train, recipe, tmp_path):
    found = simulation_arguments(recipe(train=train), str(tmp_path))
    assert found.deepspeed is None
    assert not found.fsdp


@pytest.mark.parametrize("name", ["adamw_8bit", "paged_adamw_32bit", "lion_32bit", "rmsprop_bnb", "ademamix"])
def test_an_optimizer_that_has_a_stand_in_is_not_built(name, recipe, tmp_path):
    assert is_bitsandbytes(name)
    assert simulation_arguments(recipe(train={"optim": name}), str(tmp_path)).optim == "adamw_torch"


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"learning_rate": "fast", "optim": "no_such"}, "no_such"),
        ({"no_such_field": 1}, "no_such_field"),
        ({"lr_scheduler_type": "zigzag"}, "zigzag"),
    ],
)
def test_values_that_are_refused_are_an_error_of_the_recipe(train, words, recipe, tmp_path):
    with pytest.raises(RecipeError, match=words) as raised:
        simulation_arguments(recipe(train=train), str(tmp_path))
    assert [problem.key for problem in raised.value.problems] == ["train"]
    assert raised.value.problems[0].where == "tiny"  # its name, where it has no file


def test_a_missing_package_is_an_error_of_the_setup(recipe, tmp_path, monkeypatch):
    def missing(**fields):
        raise ImportError("no module named apollo")

    monkeypatch.setattr("hf_efficient.model.recipe_trainer.SFTConfig", missing)
    with pytest.raises(SetupError, match="train: no module named apollo"):
        arguments.simulation_arguments(recipe(), str(tmp_path))


def test_no_process_group(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with process_kept():
        assert not torch.distributed.is_initialized()
    assert torch.distributed.is_initialized()
