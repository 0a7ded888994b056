"""Which modules have adapters."""

from __future__ import annotations

import pytest

from hf_efficient.errors import ModelError
from hf_efficient.estimate.model_shape import ModelShape, Trained, adapter_parameters

SHAPE = ModelShape("llama", 2, 64, 160, 4, 2, 16, 96, tied_embeddings=True, windows=(None, None))
EXPERTS = ModelShape(
    "mixtral", 1, 64, 160, 4, 2, 16, 96, False, (None,), experts=4, active_experts=2, expert_intermediate=160
)


def test_adapter_parameters_by_hand():
    assert adapter_parameters(SHAPE, Trained.adapter(SHAPE, ["q_proj", "v_proj"], 8)) == 3584


def test_all_linear_leaves_out_the_head():
    trained = Trained.adapter(SHAPE, "all-linear", 4)
    names = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert (dict(trained.ranks_of_layer(1)), trained.head_rank) == (dict.fromkeys(names, 4), 0)


def test_modules_by_their_dotted_names():
    trained = Trained.of_modules(
        SHAPE, {"base_model.model.model.layers.1.self_attn.q_proj": 3, "base_model.model.lm_head": 5}
    )
    assert (trained.ranks, trained.head_rank) == (({}, {"q_proj": 3}), 5)


def test_layers_adapted_alike_share_one_mapping():
    trained = Trained.adapter(SHAPE, ["q_proj"], 8)
    assert trained.ranks[0] is trained.ranks[1]


def test_training_a_tied_embedding_trains_the_head():
    trained = Trained.adapter(SHAPE, ["q_proj"], 8, modules_to_save=["embed_tokens"])
    assert (trained.embedding, trained.head) == (True, True)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: Trained.adapter(SHAPE, ["q_prj"]),
            "q_prj: no adapter whose FLOPs are known in this model; known are q_proj, k_proj, v_proj, o_proj, "
            "gate_proj, up_proj, down_proj, lm_head. Did you mean q_proj?",
        ),
        (
            lambda: Trained.adapter(SHAPE, ["q_proj"], modules_to_save=["norm"]),
            "norm: no module trained in full whose FLOPs are known in this model; known are embed_tokens, lm_head.",
        ),
        (lambda: Trained.adapter(SHAPE, ["q_proj"], 0), "layers.0.q_proj: an adapter of rank 0; a rank is at least 1."),
        (
            lambda: Trained.of_modules(SHAPE, {"layers.2.self_attn.q_proj": 4}),
            "layers.2.self_attn.q_proj: the model has 2 layers, counted from 0.",
        ),
        (
            lambda: Trained.of_modules(SHAPE, {"model.embed_tokens": 4}),
            "model.embed_tokens: no adapter outside the layers whose FLOPs are known in this model; known are lm_head.",
        ),
        (
            lambda: Trained.of_modules(EXPERTS, {"layers.0.mlp.experts": 4}),
            "experts: no adapter whose FLOPs are known in this model; known are q_proj, k_proj, v_proj, o_proj.",
        ),
        (
            lambda: Trained.adapter(EXPERTS),
            "all-linear on a mixture of experts: what PEFT's adapters on experts compute is not known here. "
            "Name the modules instead: q_proj, k_proj, v_proj, o_proj.",
        ),
    ],
)
def test_what_is_not_known_is_refused(call, told):
    with pytest.raises(ModelError) as error:
        call()
    assert str(error.value) == told
