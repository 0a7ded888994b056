"""What ZeRO and FSDP2 cannot share out is said before anything is loaded."""

from __future__ import annotations

import pytest

from hf_efficient.errors import RecipeError
from hf_efficient.recipe.load import load_recipe


def problems(*overrides, name="quickstart/lora"):
    try:
        load_recipe(name, ["distributed.processes=2", *overrides])
    except RecipeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("strategy", "optimizer"),
    [("zero3", "adamw_torch_fused"), ("zero2", "paged_adamw_8bit"), ("fsdp2", "adamw_torch"), ("ddp", "adafactor")],
)
def test_optimizers_that_can_be_shared_out(strategy, optimizer):
    assert problems(f"distributed.strategy={strategy}", f"train.optim={optimizer}") == ""


@pytest.mark.parametrize(("strategy", "optimizer"), [("zero1", "adafactor"), ("fsdp2", "paged_adamw_8bit")])
def test_optimizers_that_cannot(strategy, optimizer):
    said = problems(f"distributed.strategy={strategy}", f"train.optim={optimizer}")
    assert f"train.optim: is {optimizer}, whose state `distributed.strategy: {strategy}` cannot share out" in said
    assert "Write `train.optim: adamw_torch_fused`" in said


def test_quantized_weights():
    torch = "train.optim=adamw_torch_fused"
    assert problems("distributed.strategy=fsdp2", torch, name="quickstart/qlora") == ""
    assert problems("distributed.strategy=zero2", name="quickstart/qlora") == ""
    assert "cannot share out the 4-bit weights" in problems("distributed.strategy=zero3", name="quickstart/qlora")
    eight = "adapter.quantization={bits: 8}"
    assert "cannot share out 8-bit weights" in problems(
        "distributed.strategy=fsdp2", torch, eight, name="quickstart/qlora"
    )


def test_machines_and_disks():
    none = ["distributed.strategy=none", "distributed.processes=1", "distributed.nodes=2"]
    assert "is none, which is one process, but `distributed.nodes` is 2" in problems(*none)
    assert "is set, but nothing is offloaded" in problems(
        "distributed.strategy=zero3", "distributed.offload.nvme_path=/x"
    )
    disk = ["distributed.offload.parameters=true", "distributed.offload.nvme_path=/x"]
    assert problems("distributed.strategy=zero3", *disk) == ""
    assert "offloads to the host's memory alone" in problems("distributed.strategy=fsdp2", *disk)


def test_classes_of_layers_are_for_fsdp2():
    named = "distributed.wrap_classes=[LlamaDecoderLayer]"
    assert problems("distributed.strategy=fsdp2", named) == ""
    assert "distributed.wrap_classes: is set, but `distributed.strategy: zero3` does not shard by classes" in problems(
        "distributed.strategy=zero3", named
    )
    assert "`distributed.strategy: auto` does not shard" in problems(named)
    assert problems("distributed.strategy=ddp", "distributed.wrap_classes=null") == ""
