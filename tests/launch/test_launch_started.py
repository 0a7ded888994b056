"""What a launcher started against what the recipe asks for, and the command line of a run."""

from __future__ import annotations

import pytest

from hf_efficient.errors import RecipeError, SetupError
from hf_efficient.launch.started import (
    RunFlags,
    engine_contradiction,
    launch_contradiction,
    parse_flags,
    started_engine,
    started_recipe,
)
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.schema import Recipe


def test_flags_may_stand_anywhere():
    expected = RunFlags("r.yaml", ("a.b=1", "c=2", "existing_output=resume"), True)
    assert parse_flags(["--resume", "r.yaml", "a.b=1", "--debug", "c=2"]) == expected


def test_resume_and_overwrite_exclude_each_other(capsys):
    with pytest.raises(SystemExit) as caught:
        parse_flags(["r.yaml", "--resume", "--overwrite"])
    assert caught.value.code == 2
    assert "not allowed with" in capsys.readouterr().err


ZERO3 = {
    "WORLD_SIZE": "2",
    "ACCELERATE_USE_DEEPSPEED": "true",
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "none",
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "none",
}
FSDP2 = {"WORLD_SIZE": "2", "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_OFFLOAD_PARAMS": "false"}
DDP = {"WORLD_SIZE": "2"}


def recipe(*distributed):
    return load_recipe("quickstart/lora", [f"distributed.{one}" for one in ("processes=2", *distributed)])


@pytest.mark.parametrize(
    ("environment", "engine"),
    [
        ({}, "none"),
        (DDP, "ddp"),
        (ZERO3, "zero3"),
        ({**ZERO3, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "1"}, "zero1"),
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "zero2"),
        (FSDP2, "fsdp2"),
    ],
)
def test_what_was_started(environment, engine):
    assert started_engine(environment) == engine


@pytest.mark.parametrize(
    ("strategy", "environment"),
    [("auto", {}), ("auto", DDP), ("ddp", DDP), ("none", {}), ("zero3", ZERO3), ("fsdp2", FSDP2), ("ddp", {})],
)
def test_agreement(strategy, environment):
    assert (
        engine_contradiction(load_recipe("quickstart/lora", [f"distributed.strategy={strategy}"]), environment) is None
    )


@pytest.mark.parametrize(
    ("distributed", "environment", "told"),
    [
        (["strategy=zero3"], DDP, "distributed.strategy: is zero3, but the launcher started data-parallel processes"),
        (["strategy=zero3"], {}, "distributed.strategy: is zero3, but the launcher started one process"),
        (["strategy=zero2"], ZERO3, "distributed.strategy: is zero2, but the launcher started zero3."),
        (["strategy=ddp"], FSDP2, "distributed.strategy: is ddp, but the launcher started fsdp2."),
        (["strategy=auto"], ZERO3, "distributed.strategy: is auto, but the launcher started zero3."),
        (
            ["strategy=fsdp2"],
            {**FSDP2, "FSDP_VERSION": "1"},
            "distributed.strategy: is fsdp2, but the launcher started FSDP version 1 (--fsdp_version).",
        ),
        (
            ["strategy=fsdp2", "offload.parameters=true"],
            FSDP2,
            "distributed.offload.parameters: is true, but --fsdp_offload_params is false.",
        ),
        (
            ["strategy=fsdp2", "wrap_classes=[A, B]"],
            FSDP2,
            "distributed.wrap_classes: is A,B, but --fsdp_transformer_layer_cls_to_wrap is not given.",
        ),
        (
            ["strategy=fsdp2", "wrap_classes=[A, B]"],
            {**FSDP2, "FSDP_TRANSFORMER_CLS_TO_WRAP": "A,C"},
            "distributed.wrap_classes: is A,B, but --fsdp_transformer_layer_cls_to_wrap is A,C.",
        ),
        (
            ["strategy=zero3", "offload.optimizer=true"],
            ZERO3,
            "distributed.offload.optimizer: is true, but --offload_optimizer_device is none.",
        ),
        (
            ["strategy=zero3"],
            {**ZERO3, "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "cpu"},
            "distributed.offload.parameters: is false, but --offload_param_device is cpu.",
        ),
        (
            ["strategy=zero3"],
            {**ZERO3, "ACCELERATE_DEEPSPEED_CONFIG_FILE": "mine.json"},
            "the launcher names a DeepSpeed configuration of its own, mine.json.",
        ),
    ],
)
def test_contradictions_name_both(distributed, environment, told):
    said = engine_contradiction(recipe(*distributed), environment)
    assert said is not None
    assert told in said
    assert "Start with `hf-efficient train`" in said


def asking(processes: int | str) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "tiny",
            "model": {"id": "some/model"},
            "data": {"train": [{"path": "chats.jsonl"}]},
            "distributed": {"processes": processes},
            "output_dir": "out",
        }
    )


def test_fewer_processes_than_the_recipe_says():
    assert launch_contradiction(asking(2), 1) == (
        "distributed.processes: is 2, but 1 process was started. Start with `hf-efficient train`, which derives the"
        " launch from the recipe; or pass --num_processes=2 --multi_gpu to `accelerate launch`; or write"
        " distributed.processes=1."
    )


def on_machines(nodes: int, processes: int | str = "auto") -> Recipe:
    return Recipe.model_validate(
        {**asking(processes).model_dump(), "distributed": {"processes": processes, "nodes": nodes}}
    )


def test_processes_are_counted_on_each_machine():
    assert launch_contradiction(on_machines(2, 8), 16, nodes=2) is None
    said = launch_contradiction(on_machines(2, 8), 8, nodes=2)
    assert said is not None
    assert said.startswith("distributed.processes: is 8 on each of 2 machines, but 8 were started in all.")


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
