"""On-policy distillation simulated: the peak against the real training, the teacher and the generation in it."""

import json

import pytest
from plan_accuracy import real_peak

from hf_efficient.planning.arguments import PROMPT_TOKENS
from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.plan import plan
from hf_efficient.planning.simulation import planned_memory, simulate
from hf_efficient.recipe.schema import DistillSection
from hf_efficient.recipe.train_fields import train_fields

STORED = {
    "gradient_checkpointing": False, "per_device_train_batch_size": 4, "max_completion_length": 48,
    "gradient_accumulation_steps": 2,
}  # fmt: skip


@pytest.fixture
def on_policy(recipe, saved):
    def build(family="llama", method="lora", train=STORED, teacher=None, **more):
        distill = DistillSection(teacher=teacher or {"id": str(saved(family))})
        built = recipe(saved(family), method, train, **more)
        known = {name: value for name, value in built.train.items() if name in train_fields("distill_on_policy")}
        return built.model_copy(update={"objective": "distill_on_policy", "distill": distill, "train": known})

    return build


@pytest.mark.parametrize(
    ("family", "method", "train", "more"),
    [
        ("llama", "lora", {}, {}),
        ("llama", "full", {"beta": 0.5, "temperature": 0.7}, {"dtype": "float32"}),
        pytest.param("qwen2", "lora", {"bf16": True, "gradient_checkpointing": True}, {}, marks=pytest.mark.slow),
    ],
)
def test_the_peak_is_the_real_ones(on_policy, family, method, train, more):
    wanted = on_policy(family, method, {**STORED, **train}, **more)
    config = model_config(wanted.model)
    planned = planned_memory(simulate(wanted, config, 64, on_gpu=False)).peak_allocated_bytes
    assert planned == pytest.approx(real_peak(wanted, config, 64), rel=0.002)


def test_the_teacher_and_all_completions_of_a_step_are_planned(on_policy, saved):
    """On a GPU: as many bytes of weights as both models have, less for a teacher in four bits; the cache of all
    completions of a step, which are generated together."""

    def seen(**more):
        wanted = on_policy(method="full", **more)
        found = simulate(wanted, model_config(wanted.model), 64)
        memory = planned_memory(found)
        return memory.category_peak_bytes["weights"], memory.peak_allocated_bytes, found.parameters

    weights, peak, parameters = seen()
    assert weights == pytest.approx(2 * 2 * parameters, rel=0.01)
    packed, _, _ = seen(teacher={"id": str(saved("llama")), "quantization": {"double_quant": False}})
    assert 2 * parameters < packed < 0.9 * weights
    many = {**STORED, "gradient_accumulation_steps": 1024}
    cache = (
        1024 * 4 * 64 * 2 * 3 * 2 * 16 * 2
    )  # rows, tokens, keys and values, layers and one more, heads, width, bytes
    assert seen(train=many)[1] > cache > 1.5 * peak


def test_a_plan_has_memory_and_no_time(on_policy):
    found = plan(on_policy(), ["L4"])
    (gpu,) = found.gpus
    assert gpu.step_seconds is None
    assert "how long completions are" in str(gpu)
    assert found.row_tokens == 48 + PROMPT_TOKENS
    assert any("longest completion" in one for one in found.assumptions)


def test_prompts_that_do_not_fill_a_step_are_left_out(on_policy, tmp_path, tiny_tokenizer, saved):
    """Eleven prompts in steps of four: two steps an epoch."""
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{i} ="}) + "\n" for i in range(11)), encoding="utf-8")
    folder = tmp_path / "tokenizer"
    tiny_tokenizer.save_pretrained(folder)
    wanted = on_policy(train={**STORED, "per_device_train_batch_size": 2, "num_train_epochs": 1})
    model = wanted.model.model_copy(update={"tokenizer": str(folder)})
    data = wanted.data.model_copy(update={"train": [wanted.data.train[0].model_copy(update={"path": str(path)})]})
    found = plan(wanted.model_copy(update={"model": model, "data": data}), ["L4"])
    assert (found.steps, found.data.examples) == (2, 11)
