"""Recipes of two processes that end in seconds, and their launches, in which ``planted.py`` does harm."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hf_efficient.launch.exits import ended
from tests.conftest import own_environment, tiny_chats

__all__ = ["PLANTED", "train", "written"]

RECIPE = """
name: restarted
model: {{id: {model}, dtype: float32}}
data: {{train: [{{path: {chats}}}]}}
adapter: {{method: lora, r: 4, dropout: 0.1}}
train:
  {{max_length: 64, per_device_train_batch_size: 2, gradient_checkpointing: false, max_steps: 40, bf16: false,
   logging_steps: 1, save_strategy: steps, save_steps: 30, report_to: none, use_cpu: true}}
distributed: {{processes: 2, strategy: ddp, max_restarts: 1}}
cost: {{price_usd_per_hour: 36}}
efficiency: {{plan: false, preflight: false}}
output_dir: {output}
"""
PLANTED = Path(__file__).with_name("planted.py")
_LIMIT_SECONDS = 900  # for a machine that does much else


def train(
    recipe: Path, *arguments: str, before: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, str(PLANTED), "train", str(recipe), *arguments]
    told = own_environment(PLANTED.parent, PLANTED_MARKS=str(recipe.parent), **environment)
    started = subprocess.Popen(command, env=told, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with ended(started):
        said, errors = started.communicate(timeout=_LIMIT_SECONDS)
    return subprocess.CompletedProcess(command, started.returncode, said, errors)


def written(folder: Path, model: Path) -> Path:
    chats, path = folder / "chats.jsonl", folder / "recipe.yaml"
    chats.write_text("".join(json.dumps(row) + "\n" for row in tiny_chats()))
    path.write_text(RECIPE.format(model=model, chats=chats, output=folder / "out"))
    return path
