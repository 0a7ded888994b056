from __future__ import annotations

import json

from hf_efficient.recipe.json_schema import json_schema


def test_it_is_printed(run):
    ended = run("schema")
    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out) == json_schema()


def test_it_is_written(run, tmp_path):
    path = tmp_path / "recipe.schema.json"
    assert run("schema", "--output", str(path)) == (0, f"written: {path}\n", "")
    assert json.loads(path.read_text(encoding="utf-8")) == json_schema()


def test_a_file_that_cannot_be_written(run, tmp_path):
    path = tmp_path / "gone" / "recipe.schema.json"
    assert run("schema", "--output", str(path)) == (
        2,
        "",
        f"error: --output {path}: cannot be written: No such file or directory. Name a file in a folder that exists.\n",
    )
