"""The recipe as a run has written it down, read again."""

from __future__ import annotations

import pytest

from hf_efficient.errors import OutputError
from hf_efficient.recipe.writing import DifferingKey, ResolvedRecipe, ResolvedValue, differing_keys, read_resolved

TEXT = """\
recipe:
  name: tiny
  train: {learning_rate: 0.0002, bf16: false, note: '1e-4'}
  data: {train: [{path: a.jsonl}], eval: []}
provenance:
  train.learning_rate: 'command line: train.learning_rate=2e-4'
  data.train.0.path: /r/tiny.yaml:5
environment: {python: 3.11.7, gpus: []}
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "recipe.resolved.yaml"
    file.write_text(TEXT, encoding="utf-8")
    return file


def test_every_value_with_who_set_it(path):
    found = read_resolved(path)
    assert (found.name, found.description) == ("tiny", "")
    assert found.values == [
        ResolvedValue("name", "tiny", None),
        ResolvedValue("train.learning_rate", "0.0002", "command line: train.learning_rate=2e-4"),
        ResolvedValue("train.bf16", "false", None),
        ResolvedValue("train.note", "'1e-4'", None),
        ResolvedValue("data.train.0.path", "a.jsonl", "/r/tiny.yaml:5"),
        ResolvedValue("data.eval", "[]", None),
    ]
    assert found.environment == {"python": "3.11.7", "gpus": []}


def test_what_a_run_writes_is_read(tmp_path, write):
    from hf_efficient.launch.output import write_resolved_recipe
    from hf_efficient.recipe.load import load_recipe

    loaded = load_recipe(write(), ["train.max_steps=3"])
    found = read_resolved(write_resolved_recipe(tmp_path / "out", loaded, {"python": "3"}))
    assert ResolvedValue("train.max_steps", "3", "command line: train.max_steps=3") in found.values
    assert found.name == loaded.name


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("recipe: [", "cannot be read"),
        ("a: 1", "holds no recipe; a run writes it when its training starts"),
        ("- 1", "holds no recipe"),
        ("recipe: !!python/object/apply:os.system ['true']", "cannot be read"),
    ],
)
def test_what_is_no_resolved_recipe(path, text, told):
    path.write_text(text, encoding="utf-8")
    with pytest.raises(OutputError, match=told):
        read_resolved(path)


def test_keys_that_differ():
    first = ResolvedRecipe("a", "", [ResolvedValue("name", "a", None), ResolvedValue("train.seed", "1", "x")])
    second = ResolvedRecipe("b", "", [ResolvedValue("train.seed", "1", None), ResolvedValue("model.id", "m", None)])
    assert differing_keys([first, second]) == [
        DifferingKey("name", ["a", None]),
        DifferingKey("model.id", [None, "m"]),
    ]
    assert differing_keys([first, first, first]) == []
