"""Shapes, parameter counts and adapters, against models that transformers really builds."""

import pytest
import torch
from tiny_models import DIMENSIONS, tiny_config, tiny_model

from hf_efficient.errors import ModelError
from hf_efficient.estimate.model_shape import (
    ARCHITECTURES,
    ModelShape,
    Trained,
    linears_of_layer,
    parameter_count,
    shape_of,
)

MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
CASES = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 24}),
    ("mistral", {"head_dim": 24}),
    ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen2_moe", {**MIXTURE, "shared_expert_intermediate_size": 56}),
    ("qwen2_moe", {**MIXTURE, "shared_expert_intermediate_size": 56, "qkv_bias": False, "decoder_sparse_step": 2}),
    ("qwen3", {"head_dim": 24}),
    ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    ("qwen3_moe", MIXTURE),
    ("qwen3_moe", {**MIXTURE, "head_dim": 24, "mlp_only_layers": [1], "attention_bias": True}),
    ("gemma", {"head_dim": 24}),
    ("gemma2", {"head_dim": 24}),
    ("gemma3_text", {"head_dim": 24}),
    ("gemma3_text", {"head_dim": 24, "attention_bias": True, "tie_word_embeddings": False}),
    ("granite", {"attention_bias": True}),
    ("smollm3", {}),
    ("phi3", {}),
    ("olmo2", {"attention_bias": True, "num_key_value_heads": 4}),
]


@pytest.mark.parametrize(("model_type", "changes"), CASES)
def test_parameters_and_linear_modules_are_those_of_the_built_model(model_type, changes):
    model = tiny_model(model_type, **changes)
    shape = shape_of(model.config)
    assert parameter_count(shape) == model.num_parameters()
    for index, layer in enumerate(model.model.layers):
        linears = {
            (name.rsplit(".", 1)[-1], module.in_features, module.out_features, module.bias is not None)
            for name, module in layer.named_modules()
            if isinstance(module, torch.nn.Linear)
        }
        known = linears_of_layer(shape, index).values()
        assert {(one.name, one.inputs, one.outputs, one.bias) for one in known if one.is_module} == linears


def test_every_known_architecture_is_compared_with_a_built_model():
    assert {model_type for model_type, _ in CASES} == set(ARCHITECTURES)


def test_llama_3_1_8b_by_hand():
    shape = ModelShape("llama", 32, 4096, 14336, 32, 8, 128, 128256, tied_embeddings=False, windows=(None,) * 32)
    assert parameter_count(shape) == 2 * 525_336_576 + 1_342_177_280 + 5_637_144_576 + 266_240 == 8_030_261_248


def test_the_shape_of_a_configuration():
    config = tiny_config("gemma3_text", head_dim=24)
    assert shape_of(config.to_dict()) == shape_of(config)
    shape = shape_of(tiny_config("qwen3_moe", **MIXTURE, decoder_sparse_step=2, mlp_only_layers=[0]))
    assert [shape.is_mixture(layer) for layer in range(3)] == [False, True, False]


@pytest.mark.parametrize(
    ("model_type", "changes", "windows"),
    [
        ("llama", {}, (None, None, None)),
        ("mistral", {"sliding_window": 7}, (7, 7, 7)),
        ("mistral", {"sliding_window": None}, (None, None, None)),
        ("qwen2", {"sliding_window": 7}, (None, None, None)),
        ("qwen2", {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 1}, (None, 7, 7)),
        ("gemma2", {"sliding_window": 7, "head_dim": 24}, (7, None, 7)),
        ("gemma3_text", {"sliding_window": 7, "head_dim": 24, "sliding_window_pattern": 2}, (7, None, 7)),
    ],
)
def test_the_window_of_each_layer(model_type, changes, windows):
    assert shape_of(tiny_config(model_type, **changes)).windows == windows


def test_an_unknown_architecture_is_refused():
    with pytest.raises(ModelError) as raised:
        shape_of({"model_type": "mamba"})
    assert str(raised.value).startswith(
        "model_type 'mamba': its parameters and FLOPs are not known here. Known are gemma,"
    )
    with pytest.raises(ModelError, match=r"Pass its text_config where that is one of them\."):
        shape_of({"model_type": "gemma3", "text_config": {}})
    with pytest.raises(ModelError) as raised:
        shape_of({**DIMENSIONS, "model_type": "llama", "intermediate_size": None})
    assert str(raised.value) == (
        "intermediate_size: the model's configuration holds None, not a positive number. A config.json leaves out its "
        "class's defaults: load it with AutoConfig and pass that, or its to_dict()."
    )


SHAPE = ModelShape("llama", 2, 64, 160, 4, 2, 16, 96, tied_embeddings=True, windows=(None, None))


def test_what_an_adapter_trains():
    trained = Trained.of_modules(
        SHAPE, {"base_model.model.model.layers.1.self_attn.q_proj": 3, "base_model.model.lm_head": 5}
    )
    assert (trained.ranks, trained.head_rank) == (({}, {"q_proj": 3}), 5)
    trained = Trained.of_modules(SHAPE, {"layers.0.q_proj": 8}, modules_to_save=["embed_tokens"])
    assert (trained.embedding, trained.head) == (True, True)


def test_a_module_trained_in_full_is_refused_where_it_is_not_known():
    with pytest.raises(ModelError) as error:
        Trained.of_modules(SHAPE, {}, modules_to_save=["norm"])
    assert str(error.value) == (
        "norm: no module trained in full whose FLOPs are known in this model; known are embed_tokens, lm_head."
    )
