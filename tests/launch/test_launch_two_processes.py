"""ZeRO-3 in two processes: planned as each of them holds it, and gone on from its end."""

import json
import subprocess
from pathlib import Path

import pytest
import torch

from hf_efficient.accounting.account import account_of
from hf_efficient.launch.command import accelerate_command, layout_of
from hf_efficient.recipe.load import load_recipe
from tests.conftest import own_environment, tiny_chats

has_one = pytest.mark.skipif(torch.accelerator.is_available(), reason="two processes want two accelerators")
pytestmark = [pytest.mark.slow, has_one]

RECIPE = """
name: tiny
model: {{id: {model}, dtype: float32}}
adapter: {{method: full}}
data: {{train: [{{path: {chats}}}], eval_fraction: 0.2}}
train:
  {{max_steps: 2, max_length: 96, per_device_train_batch_size: 2, per_device_eval_batch_size: 2, learning_rate: 1.0e-2,
   gradient_accumulation_steps: 2, save_steps: 2, bf16: false, report_to: none}}
evaluate: {{metrics: [perplexity]}}
distributed: {{strategy: zero3, processes: 2}}
efficiency: {{preflight: false}}
output_dir: {output}
"""
SCRIPT = """
import json, os, pathlib, shutil
from hf_efficient.launch.run import run_recipe
from hf_efficient.recipe.load import load_recipe

told = []
for overrides in ([], ["existing_output=resume"]):
    result = run_recipe(load_recipe({recipe!r}, overrides))
    told.append([result.steps, dict(result.after)])
    if os.environ["RANK"] == "0" and not overrides:
        records = pathlib.Path({output!r}, "efficiency")
        shutil.copytree(records, records.with_name("first"))
if os.environ["RANK"] == "0":
    pathlib.Path({output!r}, "told.json").write_text(json.dumps(told))
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory, tiny_llama_dir) -> Path:
    pytest.importorskip("deepspeed")
    folder = tmp_path_factory.mktemp("zero3")
    path, chats, output = folder / "tiny.yaml", folder / "chats.jsonl", folder / "out"
    chats.write_text("".join(json.dumps(row) + "\n" for row in tiny_chats()), encoding="utf-8")
    path.write_text(RECIPE.format(model=tiny_llama_dir, chats=chats, output=output), encoding="utf-8")
    script = folder / "both.py"
    script.write_text(SCRIPT.format(recipe=str(path), output=str(output)), encoding="utf-8")
    recipe = load_recipe(path)
    command = accelerate_command(recipe, "", [], layout_of(recipe, device_count=0, cores=2))
    command = [*command[: command.index("-m")], str(script)]
    done = subprocess.run(command, env=own_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return output


def test_it_is_planned_as_a_rank_holds_it(output):
    found = account_of(output / "first")
    assert found.plan is not None
    assert found.steps.count == found.plan.steps == 2
    figures = {figure.name: figure for figure in found.plan.figures}
    counted = {f"{one.name}_bytes": one.bytes for one in found.memory.categories if one.how == "exact" and one.bytes}
    # half of 35,168 weights in float32 and the rotary table; two moments of them, and the counts of two flat tensors
    exact = {"weights_bytes": 35_168 * 2 + 32, "optimizer_state_bytes": 35_168 * 4 + 2 * 4}
    assert {name: counted[name] for name in exact} == exact
    for name, held in exact.items():
        assert (figures[name].predicted, figures[name].observed) == (held, held)
    # a share; and while the embedding's gradient is made, that of the last norm still waits to be sent
    gradients = figures["gradients_bytes"]
    assert gradients.predicted == gradients.observed == 35_168 * 2 + (259 + 1) * 32 * 4


def test_a_finished_run_is_loaded_and_evaluated_again(output):
    (steps, after), again = json.loads((output / "told.json").read_text())
    assert steps == 2
    assert after["loss"] > 0
    assert again == [2, pytest.approx(after, rel=1e-6)]
