"""A tiny recipe, and a process that stands for those of a proof."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.schema import Recipe

TEXT = """
name: tiny
model: {{id: {model}}}
adapter: {{method: lora, r: 4, dropout: 0.1}}
data: {{train: [{{path: {chats}}}], eval_fraction: 0.2}}
train:
  max_steps: 4
  max_length: 96
  per_device_train_batch_size: 2
  learning_rate: 1.0e-2
  warmup_steps: 2
  logging_steps: 1
  save_steps: 2
  bf16: false
  use_cpu: true
evaluate: {{metrics: [perplexity]}}
output_dir: {output}
"""

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
def tiny_recipe(tiny_llama_dir: Path, chats_jsonl: Path, tmp_path: Path) -> Callable[..., Recipe]:
    """Loads it with overrides."""
    path = tmp_path / "tiny.yaml"
    path.write_text(TEXT.format(model=tiny_llama_dir, chats=chats_jsonl, output=tmp_path / "out"), encoding="utf-8")
    return lambda *overrides: load_recipe(path, overrides)


@pytest.fixture
def fake(tmp_path: Path) -> Callable[[str], list[str]]:
    """A command that does what it is told in place of a proof's process, with ``part`` and ``notes()`` at hand."""
    import sys

    (tmp_path / "out").mkdir(exist_ok=True)

    def make(code: str) -> list[str]:
        path = tmp_path / "fake.py"
        path.write_text(FAKE.format(output=str(tmp_path / "out"), code=code), encoding="utf-8")
        return [sys.executable, str(path), "run"]

    return make
