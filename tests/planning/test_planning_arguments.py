"""What a simulation takes from the recipe's ``train``, and what it puts in place of it."""

from __future__ import annotations

import pytest

from hf_efficient.errors import RecipeError, SetupError
from hf_efficient.planning import arguments
from hf_efficient.planning.arguments import is_bitsandbytes, simulation_arguments


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


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("max_steps", 1000, 2),
        ("num_train_epochs", 3, 3),  # max_steps goes before it
        ("report_to", ["tensorboard"], []),
        ("disable_tqdm", False, True),
        ("logging_strategy", "steps", "no"),
        ("save_strategy", "steps", "no"),
        ("eval_strategy", "epoch", "no"),
        ("eval_on_start", True, False),
        ("load_best_model_at_end", True, False),
        ("push_to_hub", True, False),
        ("torch_compile", True, False),
        ("dataloader_pin_memory", True, False),
        ("dataloader_num_workers", 4, 0),
        ("dataloader_persistent_workers", True, False),
        ("use_liger_kernel", True, False),
        ("activation_offloading", True, False),
        ("tf32", True, None),
        ("warmup_steps", 100, 0),
        ("full_determinism", True, False),
        ("use_cpu", False, True),
        ("neftune_noise_alpha", 5.0, None),
        ("resume_from_checkpoint", "last", None),
        ("hub_model_id", "me/model", None),
    ],
)
def test_what_a_simulation_sets_itself(field, value, found, recipe, tmp_path):
    assert getattr(simulation_arguments(recipe(train={field: value}), str(tmp_path)), field) == found


def test_workers_with_a_prefetch_factor_are_left_out_together(recipe, tmp_path):
    train = {"dataloader_num_workers": 4, "dataloader_prefetch_factor": 8}
    assert simulation_arguments(recipe(train=train), str(tmp_path)).dataloader_prefetch_factor is None


@pytest.mark.parametrize("train", [{"deepspeed": "zero3.json"}, {"fsdp": "full_shard", "fsdp_config": "fsdp.json"}])
def test_sharding_is_no_part_of_a_simulation(train, recipe, tmp_path):
    found = simulation_arguments(recipe(train=train), str(tmp_path))
    assert found.deepspeed is None
    assert not found.fsdp


def test_nothing_is_put_into_the_recipes_directory(recipe, tmp_path):
    found = simulation_arguments(recipe(train={"output_dir": "elsewhere"}), str(tmp_path / "mine"))
    assert found.output_dir == str(tmp_path / "mine")
    assert list(tmp_path.iterdir()) == []


def test_float16_becomes_bfloat16(recipe, tmp_path):
    found = simulation_arguments(recipe(train={"fp16": True, "bf16": False}), str(tmp_path))
    assert (found.fp16, found.bf16) == (False, True)


@pytest.mark.parametrize(("wanted", "found"), [(1, 1), (2, 2), (64, 2)])
def test_two_micro_batches_are_enough(wanted, found, recipe, tmp_path):
    made = simulation_arguments(recipe(train={"gradient_accumulation_steps": wanted}), str(tmp_path))
    assert made.gradient_accumulation_steps == found


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
