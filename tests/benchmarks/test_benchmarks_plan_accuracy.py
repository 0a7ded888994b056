"""The cases that the plan's memory is measured on, and the table of errors."""

import json

import plan_accuracy
import pytest
from plan_accuracy import CASES, Case, real_peak
from plan_accuracy_gpu import GPU_CASES
from transformers import AutoConfig


@pytest.mark.parametrize("case", [*CASES, *GPU_CASES], ids=lambda case: case.name)
def test_every_case_is_a_recipe_that_says_what_its_name_says(case, tmp_path):
    recipe = plan_accuracy.recipe_of(case, tmp_path)
    assert recipe.adapter.method == case.method
    assert recipe.model.dtype == case.dtype
    assert recipe.model.attn_implementation == case.attention
    assert recipe.train["max_length"] == case.length
    assert {name: recipe.train[name] for name in case.train} == case.train
    adapter = recipe.adapter.model_dump()
    assert all(
        adapter[name].items() >= value.items() if isinstance(value, dict) else adapter[name] == value
        for name, value in case.adapter.items()
    )


def test_the_real_peak_of_a_training_by_hand(tmp_path):
    """One vocabulary so wide that all but the logits and the head is small beside them."""
    wide = {
        "model_type": "llama",
        "vocab_size": 20_000,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
    }
    (tmp_path / "config.json").write_text(json.dumps(wide))
    case = Case(
        str(tmp_path), "full", 64, {"per_device_train_batch_size": 1, "optim": "sgd", "bf16": False}, {}, "float32"
    )
    recipe = plan_accuracy.recipe_of(case, tmp_path)
    found = real_peak(recipe, AutoConfig.from_pretrained(tmp_path), 64)
    logits, head = 4 * 64 * 20_000, 4 * 8 * 20_000
    # in the loss's backward: logits, their log-softmax and its gradient; weights of head and embedding
    assert found == pytest.approx(3 * logits + 2 * head, rel=0.01)


def measured(name, predicted, real):
    return {
        "name": name,
        "predicted_bytes": predicted,
        "measured_bytes": real,
        "error": predicted / real - 1,
        "peak_phase": "backward",
        "plan_seconds": 1.0,
        "case": {},
    }


def test_cases_are_chosen_by_words_and_written(tmp_path, monkeypatch, capsys):
    asked = []

    def measure(case):
        asked.append(case.name)
        return measured(case.name, 101 if "lora" in case.name else 98, 100)

    monkeypatch.setattr(plan_accuracy, "_measured", measure)
    target = tmp_path / "found.json"
    monkeypatch.setattr("sys.argv", ["plan_accuracy.py", "--case", "narrow length=1024", "--json", str(target)])
    plan_accuracy.main()
    assert asked == [case.name for case in CASES if "narrow" in case.name and "length=1024" in case.name]
    assert len(asked) == 7
    written = json.loads(target.read_text())
    assert written["cases"] == 7
    assert written["worst_error"] == pytest.approx(0.02)
    assert written["median_error"] == pytest.approx(0.01)  # four of the seven are LoRA or QLoRA
    assert written["environment"]["versions"]["torch"]
