"""A process that stands for those of a preflight check."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FAKE = """
import json, os, pathlib, sys, time
out = pathlib.Path({output!r})
part = sys.argv[-1].removeprefix("--preflight=")
def notes(stage, rank=0, **more):
    path = out / ".preflight" / (part + "-" + str(rank) + ".json")
    path.write_text(json.dumps({{"rank": rank, "world_size": 2, "stage": stage, **more}}))
wish = os.environ.get("HF_EFFICIENT_PREFLIGHT_FILE")
def ran():
    with (out / "started").open("a") as file:
        file.write(part[:5] + " ")
ran()
{code}
"""


@pytest.fixture
def fake(tmp_path: Path) -> Callable[[str], list[str]]:
    """A command that runs this code in place of a check's process, with ``part`` and ``notes()`` at hand."""
    (tmp_path / "out").mkdir(exist_ok=True)

    def make(code: str) -> list[str]:
        path = tmp_path / "fake.py"
        path.write_text(FAKE.format(output=str(tmp_path / "out"), code=code), encoding="utf-8")
        return [sys.executable, str(path), "run"]

    return make
