"""A tuning and a sweep of a tiny model, for real."""

import json
import signal
import subprocess
import sys
import time

import psutil
import pytest
import yaml

from hf_efficient.errors import SetupError
from hf_efficient.recipe.load import load_recipe
from hf_efficient.trials.goal import Goal, Wanted
from hf_efficient.trials.knobs import KNOBS
from hf_efficient.trials.sweep import sweep
from hf_efficient.trials.tune import trials_of, tune
from tests.trials.machine import Heard

COMMAND = [sys.executable, "-c", "from hf_efficient.cli.app import main; main()"]


@pytest.fixture
def recipe_file(tmp_path, tiny_llama_dir, chats_jsonl):
    values = {
        "model": {"id": str(tiny_llama_dir)},
        "data": {"train": [{"path": str(chats_jsonl)}], "eval_fraction": 0.17},
        "train": {
            "max_length": 512, "max_steps": 100, "pad_to_multiple_of": 512, "per_device_train_batch_size": 1, "seed": 1,
            "gradient_accumulation_steps": 4, "bf16": False, "eval_strategy": "steps", "eval_steps": 2, "save_steps": 2,
        },
        "output_dir": str(tmp_path / "out"),
    }  # fmt: skip
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_naive_recipe_becomes_faster_and_nothing_else_is_left(recipe_file, tmp_path):
    heard = Heard()
    without = frozenset({"precision", "checkpointing", "loss", "fused_lora", "micro_batch", "workers", "logging"})
    found = tune(str(recipe_file), [], Goal(minutes=4.0, without=without, tolerance=0.5), heard)
    folder = tmp_path / "out-tuning"
    names = {one.knob: one.verdict for one in found.tried}
    assert names["cadence"] == "accepted"
    assert names["packing"] == "accepted", heard.lines
    assert found.total is not None
    assert found.total.ratio > 1.5
    first, last = found.ladder[0], found.ladder[-1]
    assert last.tokens_per_second > 1.5 * first.tokens_per_second
    assert first.peak_bytes
    assert {one.name for one in folder.iterdir()} == {"journal.jsonl", "tuned.yaml", "tuning.json"}
    assert not (tmp_path / "out").exists()
    tuned = load_recipe(folder / "tuned.yaml")
    assert tuned.train["packing"] is True
    assert tuned.train["eval_steps"] > 2
    assert json.loads((folder / "tuning.json").read_text())["ladder"][0]["tokens_per_second"] == first.tokens_per_second

    again = Heard()
    assert tune(str(recipe_file), [], Goal(minutes=4.0, without=without, tolerance=0.5), again).ladder == found.ladder
    assert again.lines == heard.lines


@pytest.mark.slow
def test_a_tuning_that_is_killed_continues_where_it_was(recipe_file, tmp_path):
    others = ",".join(one.name for one in KNOBS if one.name not in ("cadence", "packing"))
    flags = ["--minutes", "4", "--eval-tolerance", "50", "--without", others]
    command = [*COMMAND, "tune", str(recipe_file), *flags]
    folder = tmp_path / "out-tuning"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **quiet) as first:
        workers = killed_in_a_trial(first, folder)
    gone, alive = psutil.wait_procs(workers, timeout=20)
    assert gone
    assert not alive  # which would slow down what is measured next
    before = (folder / "journal.jsonl").read_text()
    assert len(before.splitlines()) >= 3

    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    after = (folder / "journal.jsonl").read_text()
    assert after.startswith(before[: before.rindex("\n") + 1])
    assert len(after.splitlines()) > len(before.splitlines())
    assert {one.name for one in folder.iterdir()} == {"journal.jsonl", "tuned.yaml", "tuning.json", "tuning.html"}
    assert {one.name for one in tmp_path.iterdir()} >= {"out-tuning", "recipe.yaml"}
    assert not (tmp_path / "out").exists()
    found = json.loads((folder / "tuning.json").read_text())
    assert {one["knob"] for one in found["tried"]} == {"cadence", "packing"}


def killed_in_a_trial(process, folder):
    """Kill it in its third trial or a later one; the processes that it had started."""
    journal, deadline = folder / "journal.jsonl", time.monotonic() + 200
    while True:
        assert time.monotonic() < deadline
        assert process.poll() is None
        done = len(journal.read_text().splitlines()) if journal.is_file() else 0
        workers = psutil.Process(process.pid).children(recursive=True)
        if done >= 3 and workers and (folder / "trial" / "run").is_dir():
            process.send_signal(signal.SIGKILL)
            process.wait()
            return workers
        time.sleep(0.05)


@pytest.mark.slow
def test_a_sweep_measures_its_points_and_takes_them_from_its_journal_again(recipe_file, tmp_path):
    heard, folder = Heard(), tmp_path / "out-sweep"
    asked = {"over": "per_device_train_batch_size=1,4", "goal": Goal(minutes=3.0, most_p95_seconds=60.0)}
    found = sweep(str(recipe_file), [], progress=heard, **asked)
    small, large = found.points
    assert (small.verdict, large.verdict) == ("measured", "measured"), heard.lines
    assert (small.rows, large.rows) == (4, 16)
    assert small.steps >= 5
    assert large.p50_seconds > small.p50_seconds
    assert small.peak_bytes
    assert found.answer is not None
    assert {one.name for one in folder.iterdir()} == {"journal.jsonl", "sweep.json"}
    assert not (tmp_path / "out").exists()
    again = Heard()
    assert sweep(str(recipe_file), [], progress=again, **asked).points == found.points
    assert again.lines == heard.lines
    with pytest.raises(SetupError, match="sweep: no point fits: with per_device_train_batch_size 1, it is planned for"):
        sweep(str(recipe_file), [], "per_device_train_batch_size=1,4", Goal(most_bytes=1), heard, tmp_path / "other")


@pytest.mark.slow
def test_a_trial_of_two_processes_counts_the_tokens_of_both(recipe_file, tmp_path):
    """Sharded or not, and on one process with the same global batch: the same tokens in a step, and the same loss."""
    found = []
    for processes, strategy in ((1, "auto"), (2, "ddp"), (2, "fsdp2")):
        words = [f"distributed.processes={processes}", f"distributed.strategy={strategy}"]
        words += ["distributed.global_batch_size=4", f"train.gradient_accumulation_steps={4 // processes}"]
        folder = tmp_path / f"{processes}-{strategy}"
        trials = trials_of(load_recipe(recipe_file, words), str(recipe_file), words, folder, Goal())
        found.append(trials.run({}, Wanted(steps=3, seconds=0.0, most_seconds=120.0)))
    alone, *others = found
    assert [one.processes for one in found] == [1, 2, 2]
    for one in others:
        assert one.step_tokens[:3] == alone.step_tokens[:3]
        assert one.loss == pytest.approx(alone.loss, rel=1e-4)
