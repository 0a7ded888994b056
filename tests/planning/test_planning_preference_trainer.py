"""Preferences simulated: the peak against the real training, the reference model, and what a plan tells."""

import json

import pytest
from plan_accuracy import real_peak

from hf_efficient.planning import advice as largest_module
from hf_efficient.planning.advice import with_advice, with_largest
from hf_efficient.planning.batches import run_shapes
from hf_efficient.planning.gpu import demand_of
from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.plan import plan
from hf_efficient.planning.ranks.rank import simulate_rank
from hf_efficient.planning.run_data import data_at_hand, rows_of
from hf_efficient.planning.simulation import planned_memory, simulate
from hf_efficient.recipe.train_fields import train_fields

slow = pytest.mark.slow
STORED = {"gradient_checkpointing": False, "per_device_train_batch_size": 4}
COMPLETED = {**STORED, "max_completion_length": 48, "gradient_accumulation_steps": 2}


@pytest.fixture
def preference(recipe, saved):
    def build(family, method, train=STORED, objective="dpo", **more):
        built = recipe(saved(family), method, train, **more)
        known = {name: value for name, value in built.train.items() if name in train_fields(objective)}
        return built.model_copy(update={"objective": objective, "train": known})

    return build


@pytest.mark.parametrize(
    ("family", "method", "train", "more"),
    [
        ("llama", "lora", STORED, {}),
        ("llama", "lora", STORED, {"objective": "reward"}),
        ("llama", "lora", STORED, {"objective": "kto"}),
        ("llama", "lora", STORED, {"objective": "orpo"}),
        pytest.param("llama", "lora", STORED, {"objective": "cpo"}, marks=slow),
        ("llama", "lora", COMPLETED, {"objective": "grpo"}),
        pytest.param("qwen2", "full", STORED, {"objective": "reward", "dtype": "float32"}, marks=slow),
        pytest.param("qwen2", "full", STORED, {"objective": "kto", "dtype": "float32"}, marks=slow),
        pytest.param("mistral", "lora", {**STORED, "gradient_checkpointing": True, "bf16": True}, {}, marks=slow),
        pytest.param("qwen2", "full", {**STORED, "gradient_accumulation_steps": 2}, {"dtype": "float32"}, marks=slow),
        pytest.param("llama", "qlora", {**STORED, "bf16": True}, {}, marks=slow),
    ],
)
def test_the_peak_is_the_real_ones(preference, family, method, train, more):
    wanted = preference(family, method, train, **more)
    config = model_config(wanted.model)
    planned = planned_memory(simulate(wanted, config, 64, on_gpu=False)).peak_allocated_bytes
    assert planned == pytest.approx(real_peak(wanted, config, 64), rel=0.002)


def test_pairs_and_a_reference_model(preference):
    """A pair is two rows; a full fine-tune holds its reference model too."""
    adapted, full = (
        simulate(wanted, model_config(wanted.model), 64)
        for wanted in (preference("llama", "lora"), preference("llama", "full"))
    )
    assert (adapted.rows, adapted.length) == (8, 64)
    assert len(adapted.forward_ends) == len(adapted.backward_starts) == 2
    assert planned_memory(full).category_peak_bytes["weights"] >= 2 * 2 * full.parameters
    assert planned_memory(adapted).category_peak_bytes["weights"] < 2 * 2 * full.parameters


def test_a_plan(preference):
    found = plan(preference("llama", "lora", {**STORED, "max_length": 32, "precompute_ref_log_probs": True}), ["L4"])
    assert (found.micro_batch_rows, found.row_tokens) == (8, 32)
    assert found.assumptions[0].endswith("(data.train.0.path: chats.jsonl is not on this machine)")
    assert any("train.precompute_ref_log_probs is not simulated" in one for one in found.assumptions)
    assert found.gpus[0].tokens_per_second == pytest.approx(8 * 32 / found.gpus[0].step_seconds)


def on_pairs(recipe, model, folder, rows, *uses):
    """The recipe with these pairs as its data."""
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = recipe.data.train[0].model_copy(update={"path": str(path)})
    data = recipe.data.model_copy(update={use: [source] for use in uses})
    return recipe.model_copy(update={"data": data, "model": recipe.model.model_copy(update={"id": str(model)})})


@pytest.mark.slow
def test_a_plan_by_the_pairs(preference, tiny_llama_dir, tmp_path):
    """Of six pairs in twos the mean step is that of the data; both answers are as long as the longest."""
    rows = [{"prompt": "a", "chosen": "b" * 2 * n, "rejected": "c"} for n in range(1, 7)]
    wanted = on_pairs(
        preference("llama", "lora", {**STORED, "per_device_train_batch_size": 2}),
        tiny_llama_dir,
        tmp_path,
        rows,
        "train",
    )
    found = plan(wanted, ["L4"])
    assert (found.data.examples, found.steps, found.micro_batch_rows) == (6, 9, 4)
    assert found.row_tokens == found.data.longest_tokens
    assert 0 < found.data.padding_share < 1
    changes = [key for one in with_advice(wanted, found).advice.changes for key in one.overrides]
    assert "train.train_sampling_strategy" not in changes


def test_an_evaluation_of_all_pairs_is_as_many_batches(preference, tiny_llama_dir, tmp_path):
    """Six pairs, two at a time: three batches, both answers in each."""
    rows = [{"prompt": "a", "chosen": "bb", "rejected": "cc"}] * 6
    built = preference("llama", "lora", {**STORED, "per_device_eval_batch_size": 2})
    wanted = on_pairs(built, tiny_llama_dir, tmp_path, rows, "train", "eval")
    args, data = data_at_hand(wanted)
    shapes = run_shapes(args, rows_of(data, args), 1, at_end=True)
    simulation = simulate_rank(wanted, model_config(wanted.model), shapes)
    assert demand_of(wanted, simulation, shapes).evaluation_batches == 3.0


@pytest.mark.slow
def test_the_largest_micro_batch_is_told_in_pairs(preference, monkeypatch):
    monkeypatch.setattr(largest_module, "_MOST_ROWS", 6)
    wanted = preference("llama", "lora", {**STORED, "max_length": 32})
    found = with_largest(wanted, plan(wanted, ["L4"])).largest
    assert (found.micro_batch_rows, found.rows_bounded) == (6, True)
