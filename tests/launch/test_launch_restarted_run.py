"""Two processes of one machine: one is killed, and the run goes on; one is told to end, and the run saves and stops."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hf_efficient.accounting.account import load_run
from hf_efficient.launch.exits import ended
from tests.conftest import logged_values as losses
from tests.conftest import own_environment, tiny_chats

pytestmark = pytest.mark.slow

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
_LIMIT_SECONDS = 240


def train(recipe: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PLANTED), "train", str(recipe), *arguments]
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


@pytest.fixture
def recipe(tmp_path, tiny_llama_dir):
    return written(tmp_path, tiny_llama_dir)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny_llama_dir):
    """What the same run gives that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole")
    done = train(written(folder, tiny_llama_dir))
    assert done.returncode == 0, done.stderr
    return losses(folder / "out")


def test_a_rank_is_killed_and_the_run_goes_on(recipe, tmp_path, whole):
    """At step 33, three after the checkpoint; an old run is replaced once, and not again by the restart."""
    out = tmp_path / "out"
    (out / "efficiency").mkdir(parents=True)
    (out / "efficiency/recipe.resolved.yaml").write_text("recipe: {}\nlaunched_by: [another/1/2.00]\n")
    (out / "checkpoint-39").mkdir()
    done = train(recipe, "--overwrite", PLANTED="1:33:1:kill")
    assert done.returncode == 0, done.stderr
    assert "Output      the launcher started the processes again\n" in done.stdout
    assert "on from checkpoint-30, to" in done.stdout
    assert losses(out) == whole
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-30", "checkpoint-40"]

    account = load_run(out)
    (restart,) = account.restarts
    assert (restart.last_step_before, restart.resumed_after_step, restart.steps_again) == (32, 30, 2)
    assert restart.cost_usd == pytest.approx((restart.seconds_again + restart.start_seconds) / 100)
    assert [(one.ended, one.steps) for one in account.time.processes] == [("error", 32), ("done", 10)]
    assert account.time.wall_seconds == pytest.approx(sum(one.wall_seconds for one in account.time.processes))


def test_one_rank_is_told_to_end_and_both_stop_after_the_same_step(recipe, tmp_path, whole):
    """The launcher, which would start again what fails, does not; the run goes on bit for bit."""
    out = tmp_path / "out"
    done = train(recipe, "train.save_steps=1000", PLANTED="1:3:1:terminate", PLANTED_SLEEP="0.1")
    assert done.returncode == 143, done.stderr
    (checkpoint,) = out.glob("checkpoint-*")
    step = int(checkpoint.name.removeprefix("checkpoint-"))
    assert 3 <= step < 40
    assert f"stopped by SIGTERM after step {step} of 40; {checkpoint.name} is saved. The same command" in done.stderr
    assert len(list(checkpoint.glob("rng_state_*.pth"))) == 2
    stopped = load_run(out)
    assert (stopped.ended, stopped.error) == ("stopped", f"after step {step} of 40; {checkpoint.name} is saved")

    resumed = train(recipe, "train.save_steps=1000", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert losses(out) == whole
    (restart,) = load_run(out).restarts
    assert (restart.resumed_after_step, restart.steps_again) == (step, 0)


def test_one_process_is_killed_twice_and_keeps_going(recipe, tmp_path):
    """At step 33, and again after it was resumed: the losses are those of a run that nothing happened to."""
    alone = ("distributed.processes=1", "distributed.max_restarts=0", "train.max_steps=36")
    whole = train(recipe, *alone, f"output_dir={tmp_path / 'whole'}")
    assert whole.returncode == 0, whole.stderr
    done = train(recipe, *alone, "--keep-going", PLANTED="0:33:2:kill")
    assert done.returncode == 0, done.stderr
    first, second = (line for line in done.stderr.splitlines() if line.startswith("Starting again"))
    assert first.endswith(
        "in 5 seconds, from checkpoint-30 (failure 1 of at most 5 in a row without a new checkpoint)."
    )
    assert "(failure 2 of at most 5" in second
    assert losses(tmp_path / "out") == losses(tmp_path / "whole")
    assert len(load_run(tmp_path / "out").restarts) == 2


def test_bad_input_is_not_started_again(recipe):
    done = train(recipe, "distributed.processes=1", "--keep-going", "data.train=[{path: nowhere.jsonl}]")
    assert done.returncode == 2
    assert "Starting again" not in done.stderr
