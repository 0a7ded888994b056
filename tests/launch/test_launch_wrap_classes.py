"""Classes of layers, asked for in the process that launches."""

from __future__ import annotations

import pytest

from hf_efficient.errors import ModelError
from hf_efficient.launch.machine import check_wrap_classes_without_weights
from hf_efficient.recipe.load import load_recipe


def recipe(model, *overrides):
    return load_recipe("quickstart/lora", [f"model.id={model}", "distributed.strategy=fsdp2", *overrides])


def test_the_configuration_alone_tells(tiny_llama_dir, tmp_path):
    (tmp_path / "config.json").write_text((tiny_llama_dir / "config.json").read_text())  # no weights
    check_wrap_classes_without_weights(recipe(tmp_path))
    check_wrap_classes_without_weights(recipe(tmp_path, "distributed.wrap_classes=[LlamaDecoderLayer]"))
    with pytest.raises(ModelError, match=r"MistralDecoderLayer is no class .* LlamaDecoderLayer"):
        check_wrap_classes_without_weights(recipe(tmp_path, "distributed.wrap_classes=[MistralDecoderLayer]"))


def test_a_model_that_is_not_to_be_had_is_the_runs_to_tell(tmp_path):
    check_wrap_classes_without_weights(recipe(tmp_path / "gone", "distributed.wrap_classes=[X]"))
