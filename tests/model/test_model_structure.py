"""A live model is what its configuration says, and trains what PEFT built."""

from __future__ import annotations

import pytest
import torch
from live_models import adapted, live
from peft import IA3Config, LoraConfig, PromptTuningConfig, get_peft_model
from transformers import LlamaConfig, LlamaForSequenceClassification

from hf_efficient.errors import ModelError
from hf_efficient.estimate.model_shape import Trained, adapter_parameters, shape_of
from hf_efficient.model.structure import adapter_of, shape_of_model, trained_of

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
    assert shape_of_model(model) == shape_of(model.config)


def test_an_adapted_model_is_its_base():
    model = adapted(live(), modules_to_save=["lm_head", "embed_tokens"])
    assert shape_of_model(model) == shape_of(live().config)


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


def found(model):
    return trained_of(model, shape_of_model(model))


def test_full_training_and_two_adapters():
    assert found(live()) == Trained.full()
    model = adapted(live(), ["q_proj"])
    model.add_adapter("more", LoraConfig(r=3, target_modules=["q_proj", "k_proj"], task_type="CAUSAL_LM"))
    model.base_model.set_adapter(["default", "more"])
    assert dict(found(model).ranks_of_layer(0)) == {"q_proj": 11, "k_proj": 3}
    model = adapted(live(), ["q_proj"])
    model.add_adapter("ref", LoraConfig(r=3, target_modules=["k_proj"], task_type="CAUSAL_LM"))
    shape = shape_of_model(model)
    assert found(model) == Trained.adapter(shape, ["q_proj"], 8)
    assert adapter_of(model, shape, "ref") == Trained.adapter(shape, ["k_proj"], 3)


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj"], ["down_proj", "lm_head"]])
def test_lora_as_the_recipe_says_it(targets):
    model = adapted(live(), targets)
    shape = shape_of_model(model)
    assert found(model) == Trained.adapter(shape, targets, 8)
    assert adapter_parameters(shape, found(model)) == sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("saved", "embedding", "head"),
    [(["lm_head"], False, True), (["embed_tokens"], True, False), (["embed_tokens", "lm_head"], True, True)],
)
def test_modules_trained_in_full_beside_the_adapters(saved, embedding, head):
    trained = found(adapted(live(), ["q_proj"], modules_to_save=saved))
    assert (trained.embedding, trained.head, trained.everything) == (embedding, head, False)


@pytest.mark.parametrize("bias", ["none", "lora_only"])
def test_a_bias_beside_its_adapter_changes_no_product(bias):
    model = adapted(live("qwen2"), ["q_proj"], bias=bias)
    assert found(model) == Trained.adapter(shape_of_model(model), ["q_proj"], 8)


def frozen_embedding():
    model = live()
    model.model.embed_tokens.requires_grad_(False)
    return model


def base_thawed():
    model = adapted(live(), ["q_proj"])
    model.base_model.model.model.layers[0].self_attn.q_proj.base_layer.weight.requires_grad_(True)
    return model


def merged():
    model = adapted(live(), ["q_proj"])
    model.merge_adapter()
    return model


def frozen_adapter():
    model = adapted(live(), ["q_proj"])
    model.base_model.model.model.layers[1].self_attn.q_proj.lora_A["default"].weight.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (frozen_embedding, "lm_head.weight is trained beside frozen weights|.* is trained beside frozen weights"),
        (base_thawed, ".*q_proj.base_layer.weight is trained beside frozen weights"),
        (merged, ".*q_proj: its adapter is switched off or merged"),
        (frozen_adapter, ".*q_proj: its adapter 'default' is active and frozen"),
        (lambda: adapted(live(), ["q_proj"], use_dora=True), ".*what LoRA as a DoraLinearVariant computes"),
        (lambda: adapted(live("qwen2"), ["q_proj"], bias="all"), ".*bias is trained beside frozen weights"),
        (lambda: adapted(live(), ["q_proj"], modules_to_save=["norm"]), ".*norm: no module trained in full whose"),
        (
            lambda: get_peft_model(
                live(), IA3Config(target_modules=["k_proj"], feedforward_modules=[], task_type="CAUSAL_LM")
            ),
            ".*k_proj: what an adapter of Linear computes is not known here",
        ),
        (
            lambda: get_peft_model(live(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)),
            "prompt_encoder.* is trained beside frozen weights",
        ),
    ],
)
def test_what_is_neither_full_nor_plain_lora_is_refused(build, told):
    with pytest.raises(ModelError, match=f"^({told})"):
        found(build())
