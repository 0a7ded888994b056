from __future__ import annotations

import json
from importlib.metadata import version

import pytest

from hf_efficient.cli.recipes import ExplainedValue, explanation_table
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.schema import Origin
from hf_efficient.recipe.train_fields import train_fields
from hf_efficient.recipe.tree import parse_yaml


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    root = tmp_path / "shipped"
    (root / "llama").mkdir(parents=True)
    (root / "llama" / "lora.yaml").write_text("description: LoRA\n", encoding="utf-8")
    (root / "quick.yaml").write_text("name: q\n", encoding="utf-8")
    monkeypatch.setattr("hf_efficient.recipe.files.shipped_root", lambda: root)
    return root


def test_the_list(run, shipped):
    assert run("recipes") == (0, "llama/lora  LoRA\nquick\n", "")


def test_the_list_as_json(run, shipped):
    assert json.loads(run("recipes", "--json").out) == [
        {"name": "llama/lora", "description": "LoRA", "path": str(shipped / "llama" / "lora.yaml")},
        {"name": "quick", "description": "", "path": str(shipped / "quick.yaml")},
    ]


def test_show_prints_the_resolved_recipe_which_loads_to_the_same(run, recipe):
    ended = run("recipes", "show", "r.yaml", "adapter.r=8")
    assert (ended.code, ended.err) == (0, "")
    resolved = load_recipe(recipe, ["adapter.r=8"]).resolved()
    assert parse_yaml(ended.out, Origin("shown")).plain() == resolved
    assert ended.out.startswith("name: tiny\ndescription: ''\nmethod: sft\nmodel:\n  id: some/model\n")
    recipe.write_text(ended.out, encoding="utf-8")
    assert load_recipe(recipe).resolved() == resolved


def test_show_as_json(run, recipe):
    assert json.loads(run("recipes", "show", "r.yaml", "--json").out) == load_recipe(recipe).resolved()


def test_explain_says_what_set_every_value(run, recipe, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    ended = run("recipes", "show", "r.yaml", "train.seed=3", "--explain")
    lines = {line.split()[0]: line.split()[1:] for line in ended.out.splitlines()}
    assert lines["key"] == ["value", "set", "by"]
    assert lines["name"] == ["tiny", "r.yaml:1"]
    assert lines["data.train.0.path"] == ["chats.jsonl", "r.yaml:4"]
    assert lines["train.learning_rate"] == ["0.0002", "r.yaml:6"]
    assert lines["train.seed"] == ["3", "command", "line:", "train.seed=3"]
    assert lines["adapter.r"] == ["16", "default"]
    shown, set_ones = list(lines)[1:], list(load_recipe(recipe, ["train.seed=3"]).provenance)
    assert [key for key in shown if key in set_ones] == set_ones
    assert len({line.index("default") for line in ended.out.splitlines() if line.endswith(" default")}) == 1


def test_explain_shows_the_defaults_of_the_configuration_class_after_what_is_set(run, recipe):
    rows = json.loads(run("recipes", "show", "r.yaml", "method=dpo", "--explain", "--json").out)
    told = f"default of trl {version('trl')}"
    keys = [row["key"] for row in rows]
    defaults = [row["key"] for row in rows if row["set_by"] == told]
    first = keys.index("train.learning_rate") + 1
    assert keys[first : first + len(defaults)] == defaults == sorted(defaults)
    assert keys[first + len(defaults)] == "distributed.processes"
    assert {"key": "train.beta", "value": 0.1, "set_by": told} in rows
    assert {"key": "train.loss_type.0", "value": "sigmoid", "set_by": told} in rows
    fields = {key.split(".")[1] for key in defaults}
    missing = {
        "learning_rate",
        "output_dir",
        "model_init_kwargs",
        "trust_remote_code",
        "hub_token",
        "parallelism_config",
    }
    assert set(train_fields("dpo")) - fields == missing
    assert "train.beta" not in run("recipes", "show", "r.yaml", "method=dpo").out


def test_explain_without_a_train_section(run, recipe):
    recipe.write_text("name: t\nmodel: {id: m}\ndata: {train: [{path: a}]}\noutput_dir: o\n", encoding="utf-8")
    rows = json.loads(run("recipes", "show", "r.yaml", "--explain", "--json").out)
    assert "train" not in {row["key"] for row in rows}
    assert {"key": "train.seed", "value": 42, "set_by": f"default of trl {version('trl')}"} in rows


def test_explain_as_json(run, recipe):
    rows = json.loads(run("recipes", "show", "r.yaml", "--explain", "--json").out)
    assert rows[0] == {"key": "name", "value": "tiny", "set_by": "r.yaml:1"}


def test_a_path_below_the_current_directory_is_told_from_there(run, recipe):
    rows = json.loads(run("recipes", "show", str(recipe.absolute()), "--explain", "--json").out)
    assert rows[0]["set_by"] == "r.yaml:1"


def test_what_does_not_fit_is_folded_and_not_cut():
    rows = [ExplainedValue("a.b", "x" * 70, "some/file.yaml:12"), ExplainedValue("c", "[red]", "default")]
    table = explanation_table(rows, width=80)
    assert max(map(len, table.splitlines())) <= 80
    assert "".join(table.split()).count("x") == 70
    assert table.splitlines()[-1].split() == ["c", "'[red]'", "default"]
