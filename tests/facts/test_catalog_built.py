"""Every shipped shape built by transformers, without storage, and held against its published and estimated counts."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hf_efficient.estimate.architectures import ARCHITECTURES
from hf_efficient.estimate.model_shape import ModelShape, parameter_counts
from hf_efficient.facts.models import find_model, known_models

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
    assert parameter_counts(ModelShape.from_config(text)).total == language_model.num_parameters()


def test_all_shipped_families_are_counted_by_the_arithmetic_but_those_with_a_vision_tower():
    assert {name for name in IDS if find_model(name).config["model_type"] not in ARCHITECTURES} == WITH_VISION


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("SmolLM2-135M", 134_515_008),
        ("TinyLlama-1.1B-Chat-v1.0", 1_100_048_384),
        ("Llama-3.2-1B", 1_235_814_400),
        ("Llama-2-7b-hf", 6_738_415_616),
        ("Mistral-7B-v0.1", 7_241_732_096),
        ("Qwen2.5-7B", 7_615_616_512),
        ("Llama-3.1-8B", 8_030_261_248),
        ("gemma-3-4b-it", 4_300_079_472),
        ("Mixtral-8x7B-v0.1", 46_702_792_704),
        ("Llama-3.1-405B", 405_853_388_800),
    ],
)
def test_well_known_counts(name, count):
    assert whole(find_model(name).id).num_parameters() == count
