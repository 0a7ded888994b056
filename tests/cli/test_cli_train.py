"""``hf-efficient train``: what is launched, and what is checked before."""

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hf_efficient.cli.run_command import run_command
from hf_efficient.cli.train import train
from hf_efficient.errors import RecipeError

run_command_module = importlib.import_module("hf_efficient.cli.run_command")
TELLS_TWO = "import os, pathlib; pathlib.Path(os.environ['HF_EFFICIENT_STATUS_FILE']).write_text('2')"


@pytest.mark.parametrize(
    ("code", "ends_with", "told"),
    [
        ("pass", 0, False),
        (f"{TELLS_TWO}; raise SystemExit(1)", 2, False),
        (TELLS_TWO.replace("'2'", "'143 0/29500'"), 143, False),  # it stopped, and its launcher ended well
        ("raise SystemExit(1)", 1, True),  # as the launcher ends whose worker was killed
        ("import os; os.kill(os.getpid(), 9)", 137, True),
    ],
)
def test_a_run_that_ends_without_a_report(capsys, code, ends_with, told):
    assert run_command([sys.executable, "-c", code], "outputs/a run") == ends_with
    assert capsys.readouterr().err == (
        f"error: the training ended without a report (exit code {ends_with}): it was killed, perhaps because memory "
        "ran out, or crashed outside Python. `hf-efficient report 'outputs/a run'` shows its records. There is no "
        "whole checkpoint yet: --resume starts from the first step.\n"
        if told
        else ""
    )


TELLS_KILLED = """
import os, pathlib
pathlib.Path(os.environ["HF_EFFICIENT_STATUS_FILE"]).write_text("143 1/29500")
failed = '{"rank": 1, "exit_code": -9, "starts": 3}'
pathlib.Path(os.environ["HF_EFFICIENT_FAILURE_FILE"]).write_text(failed)
raise SystemExit(1)
"""


def test_a_rank_that_was_killed_is_named_and_not_the_one_that_was_ended_for_it(capsys):
    assert run_command([sys.executable, "-c", TELLS_KILLED], "out") == 137
    said = capsys.readouterr().err
    assert said.startswith("error: rank 1 ended without a report (SIGKILL, the last of 3 starts): it was killed, ")


DEAF = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(2):
    time.sleep(0.5)
    os.kill(os.getppid(), signal.SIGTERM)
time.sleep(60)
"""


def test_a_run_that_hangs_is_ended_by_the_second_signal(monkeypatch, capsys):
    monkeypatch.setattr("hf_efficient.cli.run_command._PATIENCE_OTHERWISE_SECONDS", 0.3)
    monkeypatch.setattr("hf_efficient.launch.exits._TERM_SECONDS", 0.5)
    assert run_command([sys.executable, "-c", DEAF], "out") == 143
    assert capsys.readouterr().err == "error: the run did not end by the first signal, and was killed.\n"


def test_signals_that_come_together_are_no_impatience(monkeypatch, tmp_path):
    passed = []
    monkeypatch.setattr(run_command_module, "_pass_on", lambda launcher, received, status: passed.append(received))
    signals = run_command_module._Signals(tmp_path / "status")
    signals.started(1)
    for number, now in ((15, 100.0), (2, 109.9), (15, 129.9)):
        signals.pass_on(number, now)
    assert signals.insisted == 0
    signals.pass_on(15, 130.0)
    assert (signals.insisted, passed) == (15, [15, 2, 15, 15])


def test_a_signal_before_the_launcher_has_started_is_passed_on_to_it(monkeypatch, capsys):
    """It came between the first line of the command and the launcher's start."""
    start = subprocess.Popen

    def started(*args, **named):
        os.kill(os.getpid(), signal.SIGINT)
        return start(*args, **named)

    monkeypatch.setattr(run_command_module.subprocess, "Popen", started)
    assert run_command([sys.executable, "-c", "import time; time.sleep(60)"], "out") == 130
    assert "error: the run was ended by SIGINT" in capsys.readouterr().err


ENDS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
os.kill(os.getppid(), {number})
time.sleep(30)
"""


@pytest.fixture
def interruptible():
    """A shell starts what runs in its background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("number", "name", "code"), [(2, "SIGINT", 130), (15, "SIGTERM", 143), (10, "SIGUSR1", 143)])
def test_a_signal_before_the_run_has_begun_is_no_want_of_memory(capsys, number, name, code):
    """As the launcher ends that has not started its processes yet."""
    assert run_command([sys.executable, "-c", ENDS.format(number=number)], "out") == code
    said = capsys.readouterr().err
    assert said.endswith(f"error: the run was ended by {name}, before it began to train or to report.\n")
    assert said.startswith("\nCtrl-C: a training ends after its step" if number == 2 else "error: ")


FAKE_NSYS = """#!/bin/sh
printf '%s\\n' "$@" > "$0.told"
shift
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""


@pytest.mark.parametrize(
    ("override", "told"),
    [("data=chat.jsonl", "data.train.0.path: no such file: chat.jsonl."), ("model.id=./gone", "model.id: ./gone does")],
)
def test_a_wrong_recipe_comes_before_a_taken_directory(run, recipe, override, told):
    Path("chats.jsonl").touch()
    Path("out").mkdir()
    Path("out/trainer_state.json").write_text("{}")
    assert "output_dir: out" in run("train", "r.yaml").err
    ended = run("train", "r.yaml", override)
    assert ended.code == 2
    assert told in ended.err


def test_a_launch_under_nsight(recipe, program_on_path, monkeypatch):
    Path("chats.jsonl").touch()
    program_on_path("nsys", FAKE_NSYS)
    programs = program_on_path("accelerate")
    monkeypatch.setattr("hf_efficient.launch.command._accelerate", lambda: "accelerate")
    with pytest.raises(SystemExit) as ended:
        train("r.yaml", ["train.max_steps=9"], nsys=True)
    assert ended.value.code == 0
    told = (programs / "nsys.told").read_text().splitlines()
    assert told[0] == "profile"
    assert "--output=out/efficiency/profile/nsys" in told
    launched = (programs / "accelerate.told").read_text().splitlines()
    assert launched[0] == "launch"
    own = ["profile.nvtx=true", "profile.capture={}"]
    assert launched[-4:] == ["r.yaml", "train.max_steps=9", *own]


def test_processes_that_do_not_divide_the_global_batch(recipe, monkeypatch):
    """``auto`` is counted here, before anything is launched."""
    monkeypatch.setattr("hf_efficient.facts.environment.accelerator_count", lambda: 3)
    batch = ["distributed.processes=auto", "distributed.global_batch_size=64"]
    with pytest.raises(RecipeError, match=r"64, which 24 sequences at a time .* 8 x 3 processes\) do not divide"):
        train("r.yaml", batch, dry_run=True)


@pytest.mark.parametrize("flags", ["--on slurm", "--gpu H100", "--partition=long"])
def test_flags_of_a_job_are_answered_with_the_command(run, recipe, flags):
    flag = flags.replace("=", " ").split()[0]
    told = f"error: {flag}: is a flag of hf-efficient submit. Write hf-efficient submit in place of train.\n"
    assert run("train", str(recipe), *flags.split()) == (2, "", told)


def test_num_gpus_is_the_number_of_processes(run, recipe):
    ended = run("train", str(recipe), "--num-gpus", "2", "--dry-run")
    assert (ended.code, ended.err) == (0, "")
    assert "--num_processes=2" in ended.out
    assert ended.out.endswith("r.yaml distributed.processes=2\n")


def test_both_ways_to_treat_an_earlier_run(run, recipe):
    told = "error: --overwrite: --resume is given too. Leave one of them out.\n"
    assert run("train", str(recipe), "--resume", "--overwrite") == (2, "", told)


@pytest.mark.slow
def test_two_ddp_processes(tmp_path, tiny_llama_dir, chats_jsonl):
    """DDP, through accelerate, and the run after it, from the command line."""
    text = f"""
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
    recipe = tmp_path / "ddp.yaml"
    recipe.write_text(text)
    scripts = Path(sys.executable).parent
    own = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    main = "from hf_efficient.cli.app import main; main()"
    command = [sys.executable, "-c", main, "train", str(recipe), "--preflight-only"]
    done = subprocess.run(command, env=own, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    held = json.loads((tmp_path / "out/efficiency/preflight.json").read_text())
    assert (held["passed"], held["world_size"], held["batch_rows"]) == (True, 2, 1)
    assert held["next_loss"] == held["next_loss_after_load"]
    assert "equal, and the next loss" in done.stdout
