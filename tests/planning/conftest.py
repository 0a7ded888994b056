"""Tiny models of several families, saved once, and recipes on them."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from hf_efficient.facts.environment import quieten_libraries
from hf_efficient.recipe.schema import Recipe

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # its independent measure of the real peak

DIMENSIONS: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 32},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "sliding_window": 32},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
}


def tiny_config(family: str, **changes: Any) -> PretrainedConfig:
    return AutoConfig.for_model(family, **{**DIMENSIONS, **FAMILIES[family], **changes})


@pytest.fixture(scope="session", autouse=True)
def _quiet() -> None:
    quieten_libraries(debug=False)


@pytest.fixture(scope="session")
def tiny_config_of() -> Callable[..., PretrainedConfig]:
    """For files in the folders below."""
    return tiny_config


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a family's random model, bfloat16."""
    folders: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp(family)
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(tiny_config(family), dtype=torch.bfloat16)
            model.save_pretrained(folders[family])
        return folders[family]

    return folder


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[..., Recipe]:
    """A recipe by the fields of its sections; what it says of ``train`` is not checked."""

    def build(
        model: str | Path = "some/model",
        method: str = "lora",
        train: dict[str, Any] | None = None,
        dtype: str = "auto",
        attention: str | None = None,
        distributed: dict[str, Any] | None = None,
        **adapter: Any,
    ) -> Recipe:
        return Recipe.model_validate(
            {
                "name": "tiny",
                "model": {"id": str(model), "dtype": dtype, "attn_implementation": attention},
                "adapter": {"method": method, **adapter},
                "data": {"train": [{"path": "chats.jsonl"}]},
                "distributed": distributed or {},
                "train": {"per_device_train_batch_size": 2, "max_length": 64, **(train or {})},
                "output_dir": str(tmp_path / "out"),
            }
        )

    return build
