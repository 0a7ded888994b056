"""The files of ``recipes/accelerate`` are what the recipes generate."""

from pathlib import Path

import pytest
import yaml

from hf_efficient.launch.command import accelerate_config, layout_of
from hf_efficient.recipe.files import shipped_root
from hf_efficient.recipe.load import load_recipe

_OPTIMIZER, _PARAMETERS = "distributed.offload.optimizer=true", "distributed.offload.parameters=true"
FILES = {
    "single": ("llama3.1-8b/qlora", ["distributed.processes=1"]),
    "ddp": ("llama3.1-8b/lora", ["distributed.strategy=ddp"]),
    "zero1": ("llama3.1-8b/lora", ["distributed.strategy=zero1"]),
    "zero2": ("llama3.1-8b/lora", ["distributed.strategy=zero2"]),
    "zero2-offload": ("llama3.1-8b/lora", ["distributed.strategy=zero2", _OPTIMIZER]),
    "zero3": ("llama3.1-8b/lora", ["distributed.strategy=zero3"]),
    "zero3-offload": ("llama3.1-8b/lora", ["distributed.strategy=zero3", _OPTIMIZER, _PARAMETERS]),
    "fsdp2": ("llama3.1-8b/lora", ["distributed.strategy=fsdp2"]),
    "fsdp2-offload": ("llama3.1-8b/lora", ["distributed.strategy=fsdp2", _PARAMETERS]),
    "fsdp2-qlora": ("llama3.1-8b/qlora", ["distributed.strategy=fsdp2", "train.optim=adamw_torch_fused"]),
}
"""A recipe and overrides that each file belongs to; two processes on each machine unless they say otherwise."""
NAMES = [*FILES, *(f"{name}-two-nodes" for name in FILES if name != "single")]


def generated(name: str) -> dict[str, object]:
    base = name.removesuffix("-two-nodes")
    recipe, overrides = FILES[base]
    several = ["distributed.nodes=2"] if base != name else []
    loaded = load_recipe(recipe, ["distributed.processes=2", *overrides, *several])
    place = (0, "MACHINE_0", 29500) if several else None
    return accelerate_config(loaded, layout_of(loaded, device_count=0, cores=2, place=place))


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_what_its_recipe_generates(name):
    path = shipped_root() / "accelerate" / f"{name}.yaml"
    assert yaml.safe_load(path.read_text(encoding="utf-8")) == generated(name)


def test_there_is_no_other_file():
    assert {path.stem for path in Path(shipped_root() / "accelerate").iterdir()} == set(NAMES)
