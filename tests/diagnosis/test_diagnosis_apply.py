"""A remedy as a recipe file."""

from __future__ import annotations

import pytest
import yaml

from hf_efficient.diagnosis.remedies import applied_recipe, remedy_of
from hf_efficient.errors import OutputError
from hf_efficient.records.findings import Diagnosis, Finding, Remedy

RESOLVED = """\
recipe:
  name: chats
  model: {id: tiny, dtype: auto}
  data: {train: [{path: a.jsonl, weight: 1.0}], eval: []}
  train: {max_steps: 100, save_steps: 2}
  output_dir: out/run
  existing_output: overwrite
provenance:
  name: recipe.yaml:1
  model.id: recipe.yaml:2
  data.train.0.path: recipe.yaml:4
  train.max_steps: 'command line: train.max_steps=100'
  train.save_steps: recipe.yaml:6
  output_dir: recipe.yaml:7
  existing_output: 'command line: --overwrite'
environment: {}
"""
CODE = Remedy("move the work out of the collator")
CHANGE = Remedy("save every 50 steps", {"train.save_steps": 50, "train.save_strategy": "steps"})


def finding(rule, *remedies):
    return Finding(rule, "too many checkpoints", "warning", "measured", [], remedies=list(remedies))


def diagnosis(*findings):
    return Diagnosis(1, "0", "done", None, 5, 10.0, list(findings), [], None, [])


def test_the_recipe_keeps_what_was_set_and_takes_the_change(tmp_path):
    (tmp_path / "recipe.resolved.yaml").write_text(RESOLVED)
    text = applied_recipe(tmp_path, finding("saves_cost", CHANGE), CHANGE)
    assert text.startswith("# too many checkpoints: save every 50 steps.")
    assert yaml.safe_load(text) == {
        "name": "chats",
        "model": {"id": "tiny"},
        "data": {"train": [{"path": "a.jsonl", "weight": 1.0}]},
        "train": {"max_steps": 100, "save_steps": 50, "save_strategy": "steps"},
        "output_dir": "out/run-saves-cost",
    }


def test_a_run_without_a_recipe_is_told_its_arguments(tmp_path):
    with pytest.raises(OutputError, match=r"TrainingArguments: save_steps=50, save_strategy=steps"):
        applied_recipe(tmp_path, finding("saves_cost", CHANGE), CHANGE)


def test_a_file_that_is_no_recipe_is_refused(tmp_path):
    (tmp_path / "recipe.resolved.yaml").write_text("- 1\n")
    with pytest.raises(OutputError, match="holds no recipe"):
        applied_recipe(tmp_path, finding("saves_cost", CHANGE), CHANGE)


def test_the_first_remedy_that_changes_a_recipe_is_taken():
    found = diagnosis(finding("collator", CODE), finding("saves", CODE, CHANGE))
    assert remedy_of(found, None) == (found.findings[1], CHANGE)
    assert remedy_of(found, 2)[1] is CHANGE


@pytest.mark.parametrize(
    ("found", "number", "told"),
    [
        (diagnosis(), None, "nothing to change"),
        (diagnosis(), 1, "--finding: 1 is no finding of this run: there is none"),
        (diagnosis(finding("a", CHANGE)), 2, "--finding: 2 is no finding of this run: there are 1"),
        (diagnosis(finding("a", CHANGE)), 0, "--finding: 0 is no finding"),
        (diagnosis(finding("a", CODE)), None, "not mended in the recipe"),
        (diagnosis(finding("a", CODE), finding("b", CHANGE)), 1, "finding 1 is not mended in the recipe"),
    ],
)
def test_where_there_is_nothing_to_apply_it_says_so(found, number, told):
    with pytest.raises(OutputError, match=told):
        remedy_of(found, number)


def test_a_mapping_is_added_to_and_not_replaced(tmp_path):
    change = Remedy("copy beside the computing", {"train.accelerator_config": {"non_blocking": True}})
    own = "train: {max_steps: 100, save_steps: 2, accelerator_config: {split_batches: true}}"
    text = RESOLVED.replace("train: {max_steps: 100, save_steps: 2}", own)
    text = text.replace("  output_dir: r", "  train.accelerator_config.split_batches: recipe.yaml:9\n  output_dir: r")
    (tmp_path / "recipe.resolved.yaml").write_text(text)
    held = yaml.safe_load(applied_recipe(tmp_path, finding("host_to_device_copy", change), change))
    assert held["train"]["accelerator_config"] == {"split_batches": True, "non_blocking": True}


def test_what_is_to_be_confirmed_goes_in_and_what_was_is_over(tmp_path):
    own = "  efficiency: {grid: France, confirms: {rule: old}}\n"
    keys = "  efficiency.grid: r.yaml:8\n  efficiency.confirms.rule: r.yaml:9\n"
    text = RESOLVED.replace("  output_dir: out", f"{own}  output_dir: out")
    text = text.replace("  output_dir: r", f"{keys}  output_dir: r")
    (tmp_path / "recipe.resolved.yaml").write_text(text)
    asked = {"rule": "saves_cost", "predicted_saving": 0.4, "setup": {"model": "tiny"}}
    held = yaml.safe_load(applied_recipe(tmp_path, finding("saves_cost", CHANGE), CHANGE, asked))
    assert held["efficiency"] == {"grid": "France", "confirms": asked}
    assert yaml.safe_load(applied_recipe(tmp_path, finding("saves_cost", CHANGE), CHANGE))["efficiency"] == {
        "grid": "France"
    }


def test_what_was_derived_is_derived_again(tmp_path):
    held = yaml.safe_load(RESOLVED)
    held["recipe"]["train"]["gradient_accumulation_steps"] = 4
    held["recipe"]["distributed"] = {"global_batch_size": 64}
    held["provenance"] |= {
        "train.gradient_accumulation_steps": "derived: distributed.global_batch_size / (...)",
        "distributed.global_batch_size": "recipe.yaml:9",
    }
    (tmp_path / "recipe.resolved.yaml").write_text(yaml.safe_dump(held))
    change = Remedy("larger steps", {"train.gradient_accumulation_steps": 8, "distributed.global_batch_size": 128})
    made = yaml.safe_load(applied_recipe(tmp_path, finding("small_steps", change), change))
    assert made["train"] == {"max_steps": 100, "save_steps": 2}
    assert made["distributed"] == {"global_batch_size": 128}
