"""LLM.int8() in a simulation: the weights of the real layers, the peak of a CPU's kernels, and what a GPU's add."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from plan_accuracy_real import real_peak

from hf_efficient.model.load import load_base
from hf_efficient.planning import simulation as simulation_module
from hf_efficient.planning.blank_model import blank_model, is_eight_bit, row_constants
from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.simulation import planned_memory, simulate

STORED = {"gradient_checkpointing": False, "per_device_train_batch_size": 8}


@pytest.fixture
def eight_bit(recipe, saved):
    def build(family="llama", train=STORED, **adapter):
        return recipe(saved(family), "qlora", train, quantization={"bits": 8}, **adapter)

    return build


def test_whether_the_base_is_in_8_bits(recipe, eight_bit):
    assert is_eight_bit(eight_bit())
    assert not is_eight_bit(recipe(method="qlora"))
    assert not is_eight_bit(recipe(method="lora"))


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_every_weight_is_that_of_the_real_model(eight_bit, family):
    wanted = eight_bit(family)
    real = load_base(wanted)
    planned = blank_model(wanted, model_config(wanted.model), seed=0, checkpointing=False).get_base_model()
    own = {name.replace(".base_layer", ""): one for name, one in planned.named_parameters() if "lora_" not in name}
    assert {name: (one.shape, one.dtype) for name, one in real.named_parameters()} == {
        name: (one.shape, one.dtype) for name, one in own.items()
    }
    layers = [layer for layer in planned.modules() if row_constants(layer)]
    assert len(layers) == 2 * 7  # all linear ones of two layers
    real_layer = real.model.layers[0].mlp.down_proj
    constants = real_layer.weight.SCB if real_layer.state.SCB is None else real_layer.state.SCB
    (planned_constants,) = row_constants(planned.model.layers[0].mlp.down_proj.base_layer)
    assert (planned_constants.shape, planned_constants.dtype) == (constants.shape, constants.dtype)


@pytest.mark.parametrize("train", [STORED, {**STORED, "gradient_checkpointing": True}, {**STORED, "bf16": True}])
def test_the_peak_of_a_cpus_kernels_is_the_real_one(eight_bit, monkeypatch, train):
    monkeypatch.setattr(simulation_module, "kernels_of_a_gpu", nullcontext)
    wanted = eight_bit(train=train)
    config = model_config(wanted.model)
    planned = planned_memory(simulate(wanted, config, 64)).peak_allocated_bytes
    assert planned == pytest.approx(real_peak(wanted, config, 64), rel=0.02)


def test_a_gpus_kernels_sum_in_int32(eight_bit):
    wanted = eight_bit()
    found = simulate(wanted, model_config(wanted.model), 64)
    rows = 8 * 64
    sums = {life.shape for life in found.log.lives if "int8_linear_matmul" in life.operator}
    assert sums == {(rows, 64), (rows, 32), (rows, 160)}
    assert all(life.bytes == 4 * life.shape[0] * life.shape[1] for life in found.log.lives if life.dtype == torch.int32)
    products = [one for one in found.operators if one.name.endswith("int8_linear_matmul")]
    assert {(one.family, one.dtype) for one in products} == {("matmul", "int8")}
    linear = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160)
    assert sum(one.flops for one in products) == 2 * rows * linear  # of the forward; the backward is in 16 bits
