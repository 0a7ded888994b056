"""Contradictions of ``distributed``."""

from __future__ import annotations

import pytest

from hf_efficient.errors import RecipeError
from hf_efficient.recipe.load import load_recipe


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["strategy=none"],
        ["processes=4", "strategy=ddp"],
        ["processes=auto"],
        ["processes=1", "strategy=zero2", "offload.optimizer=true"],  # ZeRO-Offload on one GPU
        ["processes=4", "strategy=zero3", "offload.optimizer=true", "offload.parameters=true"],
        ["processes=4", "strategy=fsdp2", "offload.parameters=true"],
    ],
)
def test_what_goes_together(overrides):
    load_recipe("quickstart/lora", [f"distributed.{one}" for one in overrides])


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            ["distributed.processes=4", "distributed.strategy=none"],
            "distributed.strategy: is none, which is one process, but `distributed.processes` is 4. Write ddp, or one "
            "of zero1, zero2, zero3 and fsdp2; or processes: 1.",
        ),
        (
            ["distributed.processes=auto", "distributed.strategy=none"],
            "distributed.strategy: is none, which is one process, but `distributed.processes` is auto.",
        ),
        (
            ["distributed.processes=4", "distributed.offload.optimizer=true"],
            "distributed.offload.optimizer: is set, but `distributed.strategy: auto` cannot offload it. Write "
            "`strategy: zero2` (or zero1, zero3).",
        ),
        (
            ["distributed.strategy=fsdp2", "distributed.offload.optimizer=true"],
            "distributed.offload.optimizer: is set, but `distributed.strategy: fsdp2` offloads the optimizer's state "
            "with the weights alone. Write `parameters: true` in its place.",
        ),
        (
            ["distributed.strategy=zero2", "distributed.offload.optimizer=true", "train.optim=adafactor"],
            "distributed.offload.optimizer: is set, but DeepSpeed steps on the host with its own AdamW, and "
            "`train.optim` is adafactor. Write `train.optim: adamw_torch`, or remove it.",
        ),
        (
            ["distributed.strategy=zero2", "distributed.offload.parameters=true"],
            "distributed.offload.parameters: is set, but under `distributed.strategy: zero2` each process needs the "
            "whole weights. Write `strategy: zero3` or `strategy: fsdp2`.",
        ),
    ],
)
def test_what_does_not(overrides, told):
    with pytest.raises(RecipeError) as error:
        load_recipe("quickstart/lora", overrides)
    assert told in str(error.value)


def test_a_strategy_that_nobody_knows():
    with pytest.raises(RecipeError, match=r"distributed\.strategy"):
        load_recipe("quickstart/lora", ["distributed.strategy=zero4"])
