"""What a launcher started against what the recipe asks for."""

from __future__ import annotations

import pytest

from hf_efficient.launch.started import engine_contradiction, started_engine
from hf_efficient.recipe.load import load_recipe

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


def test_agreement_on_classes():
    environment = {**FSDP2, "FSDP_TRANSFORMER_CLS_TO_WRAP": "B,A"}
    assert engine_contradiction(recipe("strategy=fsdp2", "wrap_classes=[A, B]"), environment) is None
    assert engine_contradiction(recipe("strategy=fsdp2"), environment) is None  # the recipe says nothing of them


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
