"""`hf-efficient train` with a proof before its run: what is started, how often, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf_efficient.cli.train import prove_run, run_proven
from hf_efficient.errors import PreflightError
from hf_efficient.recipe.load import load_recipe

FAKE = """
import json, os, pathlib, sys
out = pathlib.Path({output!r})
part = sys.argv[-1].removeprefix("--preflight=")
with (out / "started").open("a") as file:
    file.write(part + " ")
wish = os.environ.get("HF_EFFICIENT_PREFLIGHT_FILE")
if part != "run":
    failure = {{"kind": "load", "message": "It cannot be loaded."}} if part == {fails!r} else {{}}
    notes = {{"rank": 0, "stage": "done", "losses": [1.0], **failure}}
    (out / ".preflight" / (part + "-0.json")).write_text(json.dumps(notes))
elif wish and {wants!r}:
    pathlib.Path(wish).write_text("the run is planned for 2 h 00 min")
"""


@pytest.fixture
def launched(tmp_path):
    """A recipe, a command, and what was started by it."""
    (tmp_path / "out").mkdir()
    path = tmp_path / "r.yaml"
    path.write_text(f"name: t\nmodel: {{id: m}}\ndata: {{train: [{{path: a}}]}}\noutput_dir: {tmp_path / 'out'}\n")

    def make(*overrides: str, wants: bool = True, fails: str = "nothing"):
        script = tmp_path / "fake.py"
        script.write_text(FAKE.format(output=str(tmp_path / "out"), wants=wants, fails=fails))
        return load_recipe(path, overrides), [sys.executable, str(script), "run"]

    return make


def started(tmp_path: Path) -> list[str]:
    path = tmp_path / "out/started"
    return path.read_text().split() if path.exists() else []


def test_a_run_that_wants_a_proof_gets_one_and_is_started_again(launched, tmp_path, capsys):
    assert run_proven(*launched(), {}, debug=False) == 0
    assert started(tmp_path) == ["run", "save", "load", "run"]
    told = capsys.readouterr().out
    assert "Proven first, since the run is planned for 2 h 00 min:" in told
    assert "passed in" in told


def test_a_run_that_wants_none(launched, tmp_path):
    assert run_proven(*launched(wants=False), {}, debug=False) == 0
    assert started(tmp_path) == ["run"]


def test_false_asks_for_none(launched, tmp_path):
    assert run_proven(*launched("efficiency.preflight=false"), {}, debug=False) == 0
    assert started(tmp_path) == ["run"]


def test_true_is_proven_without_asking_and_once(launched, tmp_path):
    recipe, command = launched("efficiency.preflight=true")
    assert run_proven(recipe, command, {}, debug=False) == 0
    assert started(tmp_path) == ["save", "load", "run"]
    assert run_proven(*launched("efficiency.preflight=true", wants=False), {}, debug=False) == 0
    assert started(tmp_path)[3:] == ["run"]


def test_a_run_that_would_fail_is_not_started(launched, tmp_path, capsys):
    with pytest.raises(PreflightError, match=r"preflight: It cannot be loaded\."):
        run_proven(*launched(fails="load"), {}, debug=False)
    assert started(tmp_path) == ["run", "save", "load"]
    assert "failed in" in capsys.readouterr().out
    with pytest.raises(PreflightError):
        prove_run(*launched(fails="save"), {}, debug=False)
    assert started(tmp_path)[3:] == ["save"]


def test_two_ddp_processes(tmp_path, tiny_llama_dir, chats_jsonl):
    """DDP, through accelerate, and the run after it, from the command line."""
    recipe = tmp_path / "ddp.yaml"
    recipe.write_text(
        f"""
name: ddp
model: {{id: {tiny_llama_dir}}}
adapter: {{method: lora, r: 4, dropout: 0.1}}
data: {{train: [{{path: {chats_jsonl}}}], eval_fraction: 0.2}}
train: {{max_steps: 2, max_length: 96, per_device_train_batch_size: 1, logging_steps: 1, bf16: false, use_cpu: true}}
evaluate: {{metrics: [exact_match], generate: {{max_new_tokens: 3}}}}
distributed: {{processes: 2}}
efficiency: {{preflight: true}}
output_dir: {tmp_path / "out"}
"""
    )
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    main = "from hf_efficient.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", main, "train", str(recipe), "--preflight-only"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    held = json.loads((tmp_path / "out/efficiency/preflight.json").read_text())
    assert (held["passed"], held["world_size"], held["batch_rows"]) == (True, 2, 1)
    assert held["next_loss"] == held["next_loss_after_load"]
    assert "equal, and the next loss" in done.stdout
