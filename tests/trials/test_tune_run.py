"""A tuning of a tiny model, for real."""

import json

import pytest
import yaml

from hf_efficient.recipe.load import load_recipe
from hf_efficient.trials.goal import Goal
from hf_efficient.trials.tune import tune
from tests.trials.machine import Heard


@pytest.fixture
def recipe_file(tmp_path, tiny_llama_dir, chats_jsonl):
    values = {
        "model": {"id": str(tiny_llama_dir)},
        "data": {"train": [{"path": str(chats_jsonl)}], "eval_fraction": 0.17},
        "train": {
            "max_length": 512, "max_steps": 100, "pad_to_multiple_of": 512, "per_device_train_batch_size": 1, "seed": 1,
            "gradient_accumulation_steps": 4, "bf16": False, "eval_strategy": "steps", "eval_steps": 2, "save_steps": 2,
        },
        "output_dir": str(tmp_path / "out"),
    }  # fmt: skip
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_naive_recipe_becomes_faster_and_nothing_else_is_left(recipe_file, tmp_path):
    heard = Heard()
    without = frozenset({"precision", "checkpointing", "loss", "fused_lora", "micro_batch", "workers", "logging"})
    found = tune(str(recipe_file), [], Goal(minutes=4.0, without=without, tolerance=0.5), heard)
    folder = tmp_path / "out-tuning"
    names = {one.knob: one.verdict for one in found.tried}
    assert names["cadence"] == "accepted"
    assert names["packing"] == "accepted", heard.lines
    assert found.total is not None
    assert found.total.ratio > 1.5
    first, last = found.ladder[0], found.ladder[-1]
    assert last.tokens_per_second > 1.5 * first.tokens_per_second
    assert first.peak_bytes
    assert {one.name for one in folder.iterdir()} == {"journal.jsonl", "tuned.yaml", "tuning.json"}
    assert not (tmp_path / "out").exists()
    tuned = load_recipe(folder / "tuned.yaml")
    assert tuned.train["packing"] is True
    assert tuned.train["eval_steps"] > 2
    assert json.loads((folder / "tuning.json").read_text())["ladder"][0]["tokens_per_second"] == first.tokens_per_second

    again = Heard()
    assert tune(str(recipe_file), [], Goal(minutes=4.0, without=without, tolerance=0.5), again).ladder == found.ladder
    assert again.lines == heard.lines
