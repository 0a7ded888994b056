"""A live model is what its configuration says, or nothing is claimed of it."""

from __future__ import annotations

import pytest
import torch
from live_models import adapted, live
from peft import PromptTuningConfig, get_peft_model
from transformers import LlamaConfig, LlamaForSequenceClassification

from hf_efficient.errors import ModelError
from hf_efficient.estimate.model_shape import ModelShape
from hf_efficient.model.structure import layer_of, shape_of_model

MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
FAMILIES = {
    "gemma": {},
    "gemma2": {},
    "gemma3_text": {"head_dim": 24},
    "granite": {},
    "llama": {"attention_bias": True},
    "mistral": {"head_dim": 24},
    "mixtral": {"num_local_experts": 4},
    "olmo2": {},
    "phi3": {},
    "qwen2": {"tie_word_embeddings": True},
    "qwen2_moe": {**MIXTURE, "shared_expert_intermediate_size": 56},
    "qwen3": {},
    "qwen3_moe": {**MIXTURE, "mlp_only_layers": [1]},
    "smollm3": {},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_known_family_is_recognised(family):
    model = live(family, **FAMILIES[family])
    assert shape_of_model(model) == ModelShape.from_config(model.config)


def test_an_adapted_model_is_its_base():
    model = adapted(live(), modules_to_save=["lm_head", "embed_tokens"])
    assert shape_of_model(model) == ModelShape.from_config(live().config)


def test_an_embedding_that_has_grown():
    model = live()
    model.resize_token_embeddings(104, mean_resizing=False)
    assert shape_of_model(model).vocabulary == 104


def test_layers_by_name():
    names = ["model.layers.3.mlp", "model.layers.12", "lm_head", "layers.0.x", "model.playlayers.3.x"]
    assert [layer_of(name) for name in names] == [3, 12, None, 0, None]


def with_an_extra_layer():
    model = live()
    model.model.layers[1].extra = torch.nn.Linear(64, 8)
    return model


def with_a_narrower_layer():
    model = live()
    model.model.layers[0].mlp.up_proj = torch.nn.Linear(64, 100, bias=False)
    return model


def without_a_layer():
    model = live()
    del model.model.layers[1]
    return model


def classifier():
    return LlamaForSequenceClassification(LlamaConfig(**{**live().config.to_dict(), "num_labels": 3}))


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (with_an_extra_layer, "model.layers.1.extra: a linear layer of 64 to 8 features is not what a llama model"),
        (with_a_narrower_layer, "model.layers.0.mlp.up_proj: a linear layer of 64 to 100 features"),
        (without_a_layer, "q_proj: the model has no such linear layer in layer 1"),
        (classifier, "score: a linear layer of 64 to 3 features"),
        (lambda: torch.nn.Linear(3, 4), "Linear: it has no configuration"),
    ],
)
def test_what_is_built_otherwise_is_refused(build, told):
    with pytest.raises(ModelError) as caught:
        shape_of_model(build())
    assert str(caught.value).startswith(told)


def test_prompt_tuning_is_seen_by_its_base():
    model = get_peft_model(live(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))
    assert shape_of_model(model).model_type == "llama"
