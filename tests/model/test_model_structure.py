"""A live model is what its configuration says, and trains what PEFT built."""

import pytest
import torch
from live_models import adapted, live
from peft import IA3Config, LoraConfig, PromptTuningConfig, get_peft_model
from transformers import LlamaConfig, LlamaForSequenceClassification

from hf_efficient.errors import ModelError
from hf_efficient.estimate.model_shape import Trained, shape_of
from hf_efficient.model.structure import adapter_of, shape_of_model, trained_of

MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "mlp_only_layers": [1]}
FAMILIES = {
    "gemma3_text": {"head_dim": 24}, "llama": {"attention_bias": True}, "phi3": {},
    "qwen2": {"tie_word_embeddings": True}, "qwen3_moe": MIXTURE,
}  # fmt: skip
"""One of each kind; the shape of every other is compared with a built model where shapes are."""


@pytest.mark.parametrize("family", FAMILIES)
def test_every_known_family_is_recognised(family):
    model = live(family, **FAMILIES[family])
    assert shape_of_model(model) == shape_of(model.config)


def test_an_adapted_model_is_its_base():
    model = adapted(live(), modules_to_save=["lm_head", "embed_tokens"])
    assert shape_of_model(model) == shape_of(live().config)


def with_linear(path, *features, **options):
    model = live()
    model.set_submodule(path, torch.nn.Linear(*features, **options))
    return model


def without_a_layer():
    model = live()
    del model.model.layers[1]
    return model


def classifier():
    return LlamaForSequenceClassification(LlamaConfig(**{**live().config.to_dict(), "num_labels": 3}))


def test_what_is_built_otherwise_is_refused():
    for build, told in (
        (
            lambda: with_linear("model.layers.1.extra", 64, 8),
            "model.layers.1.extra: a linear layer of 64 to 8 features is not what a llama model",
        ),
        (
            lambda: with_linear("model.layers.0.mlp.up_proj", 64, 100, bias=False),
            "model.layers.0.mlp.up_proj: a linear layer of 64 to 100 features",
        ),
        (without_a_layer, "q_proj: the model has no such linear layer in layer 1"),
        (classifier, "score: a linear layer of 64 to 3 features"),
        (lambda: torch.nn.Linear(3, 4), "Linear: it has no configuration"),
    ):
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
    assert found(model) == Trained(ranks=({"q_proj": 8},) * 2)
    assert adapter_of(model, shape, "ref") == Trained(ranks=({"k_proj": 3},) * 2)


def test_lora_as_the_recipe_says_it():
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert found(adapted(live())) == Trained(ranks=(dict.fromkeys(names, 8),) * 2)
    assert found(adapted(live(), ["down_proj", "lm_head"])) == Trained(ranks=({"down_proj": 8},) * 2, head_rank=8)


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
    assert found(model) == Trained(ranks=({"q_proj": 8},) * 2)


def trains(model, weight, trained):
    model.get_parameter(weight).requires_grad_(trained)
    return model


Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj"


def merged():
    model = adapted(live(), ["q_proj"])
    model.merge_adapter()
    return model


def test_what_is_neither_full_nor_plain_lora_is_refused():
    for build, told in (
        (
            lambda: trains(live(), "model.embed_tokens.weight", False),
            "lm_head.weight is trained beside frozen weights|.* is trained beside frozen weights",
        ),
        (
            lambda: trains(adapted(live(), ["q_proj"]), f"{Q_PROJ}.base_layer.weight", True),
            ".*q_proj.base_layer.weight is trained beside frozen weights",
        ),
        (merged, ".*q_proj: its adapter is switched off or merged"),
        (
            lambda: trains(adapted(live(), ["q_proj"]), f"{Q_PROJ}.lora_A.default.weight", False),
            ".*q_proj: its adapter 'default' is active and frozen",
        ),
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
    ):
        with pytest.raises(ModelError, match=f"^({told})"):
            found(build())
