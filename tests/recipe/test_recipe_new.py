"""Recipes that `init` writes: they validate, and fit the model, the data and the accelerator."""

import json

import pytest

from hf_efficient.facts.tables import accelerator
from hf_efficient.recipe.load import check_text
from hf_efficient.recipe.new import NewRecipe, bases_of, fitting_adapter, parameters_of, recipe_text


@pytest.mark.parametrize("gpu", [None, "T4", "A10"])
@pytest.mark.parametrize("adapter", ["lora", "qlora", "full"])
@pytest.mark.parametrize(
    "data",
    [
        {"format": "messages", "rows": 500},
        {"format": "prompt_completion", "rows": 5, "columns": {"prompt": "question: asked"}},
        {"format": "preference", "rows": 500, "objective": "dpo"},
        {"format": "preference", "rows": 5, "objective": "dpo"},
        {"format": "unpaired", "rows": 500, "objective": "kto"},
        {},
    ],
)
def test_it_validates_and_is_short(gpu, adapter, data):
    new = NewRecipe("my: run", "some/model", "a b.jsonl", gpu and accelerator(gpu), adapter, **data)
    text = recipe_text(new)
    loaded = check_text(text, "my.yaml")
    assert 9 <= len(text.splitlines()) <= 20
    assert max(map(len, text.splitlines())) <= 120
    assert (loaded.name, loaded.model.id, loaded.data.train[0].path) == ("my: run", "some/model", "a b.jsonl")
    assert (loaded.adapter.method, loaded.objective) == (adapter, data.get("objective", "sft"))
    assert bool(loaded.train.get("fp16")) == (gpu == "T4")
    assert not [source for source in loaded.data.eval if source.path.startswith("builtin")]
    assert (loaded.data.eval_fraction is None) == (data.get("rows") == 5)


@pytest.mark.parametrize(("rows", "steps"), [(30, 15), (499, 250), (500, None), (None, None)])
def test_few_rows_are_still_some_steps(rows, steps):
    train = check_text(recipe_text(NewRecipe("r", "m", "a.jsonl", None, format="text", rows=rows)), "r.yaml").train
    assert train["packing"] == (steps is None)
    assert train["gradient_accumulation_steps"] == (8 if steps is None else 1)
    assert steps is None or -(-rows // train["per_device_train_batch_size"]) == steps


@pytest.mark.parametrize(("rows", "held"), [(20, 4), (50, 10), (100, 10), (200, 10), (1000, 50), (None, None)])
def test_the_evaluation_has_some_rows_where_data_are_few(rows, held):
    data = check_text(recipe_text(NewRecipe("r", "m", "a.jsonl", None, format="text", rows=rows)), "r.yaml").data
    assert data.eval_fraction == (held / rows if rows else 0.05)


def test_targets_of_a_chat_are_its_answers():
    new = NewRecipe("r", "m", "a.jsonl", None, format="messages", rows=100)
    assert check_text(recipe_text(new), "r.yaml").data.targets == "assistant"


def test_lora_where_the_weights_leave_room():
    for model, gpu, adapter in (
        ("meta-llama/Llama-3.1-8B-Instruct", "A10", "qlora"),
        ("meta-llama/Llama-3.1-8B-Instruct", "L40S", "lora"),
        ("meta-llama/Llama-3.2-3B-Instruct", "T4", "qlora"),
        ("meta-llama/Llama-3.2-1B", "T4", "lora"),
        ("unknown/model", "H100 SXM", "qlora"),
        ("meta-llama/Llama-3.1-8B-Instruct", None, "lora"),
    ):
        held = gpu and accelerator(gpu)
        assert fitting_adapter(model, held) == adapter
        assert bases_of(NewRecipe("r", model, "d", held)) == f"bases/{adapter}"


def test_a_local_model_is_counted_from_its_configuration(tiny_llama_dir, tmp_path):
    from transformers import AutoModelForCausalLM

    count = sum(one.numel() for one in AutoModelForCausalLM.from_pretrained(tiny_llama_dir).parameters())
    assert parameters_of(str(tiny_llama_dir)) == count
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "other"}), encoding="utf-8")
    assert parameters_of(str(tmp_path)) is None
