"""``hf-efficient`` in this process: what it prints and how it exits."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from hf_efficient.cli.app import main
from hf_efficient.recipe.train_fields import train_fields

RECIPE = """\
name: tiny
model: {id: some/model}
data:
  train: [{path: chats.jsonl}]
train:
  learning_rate: 2e-4
output_dir: out
"""


class Ended(NamedTuple):
    """Exit code, standard output, standard error."""

    code: object
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    def run_command(*args: str) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main(args)
        return Ended(exit_.value.code, *capsys.readouterr())

    return run_command


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A valid recipe, ``r.yaml`` in the current directory; the fields of ``train:`` are remembered already."""
    train_fields("sft")
    monkeypatch.chdir(tmp_path)
    path = Path("r.yaml")
    path.write_text(RECIPE, encoding="utf-8")
    return path


WRITES_DOWN = """#!/bin/sh
printf '%s\\n' "$@" > "$0.told"
for file; do :; done
[ -f "$file" ] && cat "$file" > "$0.text"
exit 0
"""


@pytest.fixture
def program_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Put a program on the PATH that writes down how it was called; returns its folder."""
    folder = tmp_path / "bin"
    monkeypatch.setenv("PATH", str(folder))

    def put(name: str, text: str = WRITES_DOWN) -> Path:
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
        return folder

    return put
