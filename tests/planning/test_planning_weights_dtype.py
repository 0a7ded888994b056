"""The data type of weights that nobody loads, against the one that transformers loads them in."""

from __future__ import annotations

import json

import pytest
import torch
from planned_recipes import CONFIG
from transformers import AutoConfig, AutoModelForCausalLM

from hf_efficient.model.load import load_dense_base
from hf_efficient.planning.model_config import model_config, weights_dtype
from hf_efficient.recipe.schema import ModelSection


@pytest.fixture
def saved_without_dtype(tmp_path):
    """A checkpoint whose configuration does not tell its data type."""

    def build(dtype):
        fields = {name: value for name, value in CONFIG.items() if name not in ("architectures", "dtype")}
        AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields), dtype=dtype).save_pretrained(tmp_path)
        path = tmp_path / "config.json"
        held = json.loads(path.read_text())
        for key in ("dtype", "torch_dtype"):
            held.pop(key, None)
        path.write_text(json.dumps(held))
        return ModelSection(id=str(tmp_path))

    return build


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_checkpoints_own(saved_without_dtype, dtype):
    model = saved_without_dtype(dtype)
    assert weights_dtype(model, model_config(model)) == load_dense_base(model).dtype == dtype


def test_the_recipe_and_the_configuration_go_before_it(saved_without_dtype, saved):
    model = saved_without_dtype(torch.bfloat16)
    other = model.model_copy(update={"dtype": "float16"})
    assert weights_dtype(other, model_config(other)) == torch.float16
    stated = ModelSection(id=str(saved("llama")))
    assert weights_dtype(stated, model_config(stated)) == torch.bfloat16


def test_without_weights_it_is_transformers_default(saved_without_dtype, tmp_path):
    model = saved_without_dtype(torch.bfloat16)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"broken")
    assert weights_dtype(model, model_config(model)) == torch.float32
    weights.unlink()
    assert weights_dtype(model, model_config(model)) == torch.float32
