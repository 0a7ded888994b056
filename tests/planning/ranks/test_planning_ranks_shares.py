"""A recipe's strategy as the launch sets it, and the units that are gathered at once."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_efficient.estimate.sharding import Sharding
from hf_efficient.launch.command import deepspeed_config
from hf_efficient.planning.ranks.shares import model_width, sharding_of
from hf_efficient.planning.simulation import unit_names, units_of


@pytest.mark.parametrize(
    ("distributed", "expected"),
    [
        ({}, Sharding("none", 1)),
        ({"processes": 4}, Sharding("ddp", 4)),
        ({"processes": "auto"}, Sharding("none", 1)),
        ({"processes": 1, "strategy": "ddp"}, Sharding("none", 1)),
        ({"processes": 8, "strategy": "fsdp2"}, Sharding("fsdp2", 8)),
        ({"processes": 8, "nodes": 2, "strategy": "fsdp2"}, Sharding("fsdp2", 16)),
        ({"processes": "auto", "nodes": 2}, Sharding("ddp", 2)),
        (
            {"processes": 2, "strategy": "zero3", "offload": {"optimizer": True, "parameters": True}},
            Sharding("zero3", 2, offload_optimizer=True, offload_parameters=True, overlap_comm=True),
        ),
    ],
)
def test_what_a_recipe_says(recipe, distributed, expected):
    assert sharding_of(recipe(distributed=distributed)) == expected


def test_what_a_launch_adds(recipe):
    wanted = recipe(train={"gradient_accumulation_steps": 3}, distributed={"processes": "auto"})
    assert sharding_of(wanted, 4) == Sharding("ddp", 4, micro_batches=3)
    # 4096 squared is 16,777,216; nine tenths 15,099,494; ten times 40,960.
    wanted = recipe(distributed={"processes": 2, "strategy": "zero3"})
    found = sharding_of(wanted, width=4096)
    assert (found.bucket_elements, found.prefetch_elements, found.persistent_elements) == (
        16_777_216,
        15_099_494,
        40_960,
    )
    assert sharding_of(recipe(distributed={"processes": 2}), width=4096) == Sharding("ddp", 2)


def test_the_width_of_a_model():
    config = SimpleNamespace
    assert model_width(config(hidden_size=64, text_config=config(hidden_size=8))) == 64
    assert model_width(config(text_config=config(hidden_size=48))) == 48
    assert model_width(config(d_model=512)) is None


@pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="transformers takes DeepSpeed's settings then"
)
@pytest.mark.parametrize("engine", ["zero1", "zero2", "zero3"])
def test_the_plan_is_that_of_the_launch(recipe, engine):
    """What DeepSpeed is told, as transformers fills it in, and what it takes for granted where it is told nothing."""
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    wanted = recipe(distributed={"processes": 2, "strategy": engine})
    told = HfTrainerDeepSpeedConfig(deepspeed_config(wanted, engine))
    args = TrainingArguments(output_dir=wanted.output_dir, use_cpu=True, report_to="none")
    config = SimpleNamespace(hidden_size=72)
    told.trainer_config_process(args)
    told.trainer_config_finalize(args, SimpleNamespace(config=config), 10)
    launched = DeepSpeedZeroConfig(**told.config["zero_optimization"])
    planned = sharding_of(wanted, width=model_width(config))
    assert planned.bucket_elements == launched.reduce_bucket_size
    assert planned.overlap_comm == launched.overlap_comm
    assert launched.contiguous_gradients
    assert launched.reduce_scatter
    assert planned.reuse_elements == launched.max_reuse_distance
    if engine == "zero3":
        assert planned.prefetch_elements == launched.prefetch_bucket_size
        assert planned.persistent_elements == launched.param_persistence_threshold


@pytest.fixture
def cut(tiny_config_of):
    def build(family):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(tiny_config_of(family))
        return model, units_of(model, {})

    return build


def test_units(cut):
    model, units = cut("llama")
    assert [unit.name for unit in units] == ["model.embed_tokens", "model.layers.0", "model.layers.1", "tail", "root"]
    assert [unit.is_layer for unit in units] == [False, True, True, False, False]
    assert [unit.stays for unit in units] == [False, False, False, True, True]
    assert [weight.name for weight in units[3].weights] == ["model.norm.weight", "lm_head.weight"]
    assert units[-1].weights == ()
    assert sum(weight.elements for unit in units for weight in unit.weights) == sum(
        one.numel() for one in model.parameters()
    )
    # Its backward ends with the embedding's, which no gradient passes out of.
    _, units = cut("qwen2")
    assert [unit.name for unit in units] == ["model.layers.0", "model.layers.1", "tail", "root"]
    assert units[2].ends_last
    assert {weight.name for weight in units[2].weights} == {"model.norm.weight", "model.embed_tokens.weight"}
    _, units = cut("llama")
    names = unit_names(units, ["model.layers.1.mlp.up_proj", "model.layers.1", "lm_head", "model.rotary_emb", ""])
    assert {module: unit and unit.name for module, unit in names.items()} == {
        "model.layers.1.mlp.up_proj": "model.layers.1",
        "model.layers.1": "model.layers.1",
        "lm_head": "tail",
        "model.rotary_emb": None,
        "": None,
    }


def test_units_of_classes_that_a_recipe_names(cut):
    """Norms between them are the root's; embedding and tail stay what they are."""
    model, _ = cut("llama")
    units = units_of(model, {}, ["LlamaAttention", "LlamaMLP"])
    parts = [f"model.layers.{layer}.{part}" for layer in (0, 1) for part in ("self_attn", "mlp")]
    assert [unit.name for unit in units] == ["model.embed_tokens", *parts, "tail", "root"]
    norms = [
        f"model.layers.{n}.{name}.weight" for n in (0, 1) for name in ("input_layernorm", "post_attention_layernorm")
    ]
    assert [weight.name for weight in units[-1].weights] == norms
    assert [weight.name for weight in units[-2].weights] == ["model.norm.weight", "lm_head.weight"]


@pytest.mark.parametrize("family", ["mistral", "qwen3", "gemma2"])
def test_other_families(cut, family):
    _, units = cut(family)
    assert [unit.name for unit in units if unit.is_layer] == ["model.layers.0", "model.layers.1"]
    assert units[-1].weights == ()
