"""Distillation simulated: the peak against the real training, the teacher in it, and what a pruned model needs."""

import pytest
from plan_accuracy import real_peak

from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.simulation import planned_memory, simulate
from hf_efficient.recipe.schema import DistillSection, PruneSection

slow = pytest.mark.slow
STORED = {"gradient_checkpointing": False, "per_device_train_batch_size": 4}
RANDOM_STATE = 5056
"""Bytes that torch keeps of its random numbers for each checkpointed layer, and when it computes one again."""
CHECKPOINTED = {**STORED, "gradient_checkpointing": True, "bf16": True, "gradient_accumulation_steps": 2}


@pytest.fixture
def distilled(recipe, saved):
    def build(family="llama", method="lora", train=STORED, dtype="auto", prune=None, **section):
        distill = DistillSection(**{"teacher": {"id": str(saved(family))}, **section})
        built = recipe(saved(family), method, train, dtype)
        model = built.model.model_copy(update={"prune": prune})
        return built.model_copy(update={"objective": "distill", "distill": distill, "model": model})

    return build


@pytest.mark.parametrize(
    ("family", "method", "train", "more"),
    [
        ("llama", "lora", STORED, {}),
        ("llama", "full", STORED, {"dtype": "float32", "hidden_states": 1.0, "temperature": 2.0}),
        ("qwen2", "full", STORED, {"dtype": "float32", "top_k": 8}),
        pytest.param("gemma2", "lora", CHECKPOINTED, {}, marks=slow),
        pytest.param("llama", "qlora", CHECKPOINTED, {}, marks=slow),
    ],
)
def test_the_peak_is_the_real_ones(distilled, family, method, train, more):
    wanted = distilled(family, method, train, **more)
    config = model_config(wanted.model)
    planned = planned_memory(simulate(wanted, config, 64, on_gpu=False)).peak_allocated_bytes
    states = 6 * RANDOM_STATE if train is CHECKPOINTED else 0
    assert planned == pytest.approx(real_peak(wanted, config, 64) - states / 2, rel=0.002, abs=states / 2)


@slow
def test_the_peak_with_a_teacher_in_four_bits(distilled, saved, monkeypatch):
    # where a CPU multiplies in bfloat16, bitsandbytes 0.50 packs rows that have no whole number of blocks, and fails
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: False)
    wanted = distilled(teacher={"id": str(saved("llama")), "quantization": {}})
    config = model_config(wanted.model)
    planned = planned_memory(simulate(wanted, config, 64, on_gpu=False)).peak_allocated_bytes
    assert planned == pytest.approx(real_peak(wanted, config, 64), rel=0.002)


def test_what_the_teacher_takes(distilled, saved):
    """As many bytes as the student's base in the same dtype, a forward of the same FLOPs; half of that, twice less for
    the layers in four bits; nothing with a cache."""

    def seen(**more):
        wanted = distilled(**more)
        found = simulate(wanted, model_config(wanted.model), 64)
        return planned_memory(found).category_peak_bytes["weights"], sum(one.flops for one in found.operators)

    (alone, flops), (held, with_teacher) = seen(top_k=8), seen()
    assert held == pytest.approx(2 * alone, rel=0.01)
    assert 1.3 * flops < with_teacher < 1.6 * flops
    packed, _ = seen(teacher={"id": str(saved("llama")), "quantization": {"double_quant": False}})
    assert alone < packed < 0.75 * held


def test_a_pruned_model_is_planned_as_it_is_trained(distilled):
    """One of two blocks goes from the student, none from its teacher."""
    whole, half = (distilled(method="full", prune=one) for one in (None, PruneSection(layers=1)))
    found = [simulate(one, model_config(one.model), 64) for one in (whole, half)]
    assert model_config(half.model).num_hidden_layers == 1
    assert 2 * found[1].parameters - found[0].parameters == pytest.approx(2 * 96 * 64 + 64, abs=1)
