"""The largest parameter by hand."""

from __future__ import annotations

import json

import pytest
import torch
from planned_recipes import write_model

from hf_efficient.errors import ModelError
from hf_efficient.planning.model_config import largest_parameter
from hf_efficient.recipe.schema import ModelSection


def test_an_embedding_and_the_experts_of_a_layer(tmp_path):
    seed = torch.get_rng_state()
    llama = write_model(tmp_path / "llama")
    assert largest_parameter(ModelSection(id=str(llama))) == 2048 * 128
    experts = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 8}
    mixtral = write_model(tmp_path / "mixtral", vocab_size=100, **experts)
    assert largest_parameter(ModelSection(id=str(mixtral))) == 8 * 2 * 256 * 128  # two matrices of each, in one
    assert torch.equal(torch.get_rng_state(), seed)


def test_a_model_that_is_not_known(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nobodys"}), encoding="utf-8")
    with pytest.raises(ModelError, match="cannot be read"):
        largest_parameter(ModelSection(id=str(tmp_path)))
