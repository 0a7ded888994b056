"""A small valid recipe as a file, and a way to write more."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hf_efficient.errors import RecipeError
from hf_efficient.recipe.load import load_recipe

VALID = """\
name: tiny
model: {id: some/model}
data:
  train: [{path: chats.jsonl}]
train:
  learning_rate: 2e-4
output_dir: out
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """``write(text, name="r.yaml")`` writes below tmp_path, the current directory, and returns the path."""
    monkeypatch.chdir(tmp_path)

    def write_file(text: str = VALID, name: str = "r.yaml") -> Path:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


@pytest.fixture
def problems(write: Callable[..., Path]) -> Callable[..., list[str]]:
    """``problems(text, *overrides)``: what ``load_recipe`` says of a recipe; [] where it resolves."""

    def say(text: str = VALID, *overrides: str) -> list[str]:
        try:
            load_recipe(write(text), overrides)
        except RecipeError as error:
            return [str(problem) for problem in error.problems]
        return []

    return say
