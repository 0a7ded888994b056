"""``hf-efficient train``: what is launched, what is checked before, and the job of a cluster."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hf_efficient.cli.recipes import launch_page
from hf_efficient.cli.run_command import run_command
from hf_efficient.cli.train import train
from hf_efficient.errors import RecipeError
from hf_efficient.recipe.load import load_recipe

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
def test_a_run_that_ends_without_a_word_is_told_of(capsys, code, ends_with, told):
    assert run_command([sys.executable, "-c", code], "outputs/a run") == ends_with
    assert capsys.readouterr().err == (
        f"error: the training ended without saying why (exit code {ends_with}): it was killed, for want of memory "
        "perhaps, or crashed outside Python. `hf-efficient report 'outputs/a run'` shows what it recorded; the same "
        "command with --resume continues from its last checkpoint.\n"
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
    assert said.startswith("error: rank 1 ended without saying why (SIGKILL, the last of 3 starts): it was killed, ")


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
    signals = run_command_module._Signals(1, tmp_path / "status")
    for number, now in ((15, 100.0), (2, 109.9), (15, 129.9)):
        signals.pass_on(number, now)
    assert signals.insisted == 0
    signals.pass_on(15, 130.0)
    assert (signals.insisted, passed) == (15, [15, 2, 15, 15])


WRITES_DOWN = """#!/bin/sh
printf '%s\\n' "$@" > "$0.told"
for file; do :; done
[ -f "$file" ] && cat "$file" > "$0.text"
exit 0
"""
FAKE_NSYS = """#!/bin/sh
printf '%s\\n' "$@" > "$0.told"
shift
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""


@pytest.fixture
def program_on_path(tmp_path, monkeypatch):
    """Put a program on the PATH that writes down how it was called; returns its folder."""
    folder = tmp_path / "bin"
    monkeypatch.setenv("PATH", str(folder))

    def put(name, text=WRITES_DOWN):
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
        return folder

    return put


def test_a_launch_under_nsight(recipe, program_on_path, monkeypatch, capsys):
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
    own = ["efficiency.profile.nvtx=true", "efficiency.profile.capture={}"]
    assert launched[-4:] == ["r.yaml", "train.max_steps=9", *own]
    assert capsys.readouterr().out.startswith("$ nsys profile --trace=cuda,nvtx")


def test_processes_that_do_not_divide_the_global_batch(recipe, monkeypatch):
    """``auto`` is counted here, before anything is launched."""
    monkeypatch.setattr("hf_efficient.facts.environment.accelerator_count", lambda: 3)
    batch = ["distributed.processes=auto", "distributed.global_batch_size=64"]
    with pytest.raises(RecipeError, match=r"64, which 24 sequences at a time .* 8 x 3 processes\) do not divide"):
        train("r.yaml", batch, dry_run=True)
    with pytest.raises(RecipeError, match="24 sequences at a time"):
        launch_page(load_recipe(recipe, batch), "r.yaml", batch, as_json=False)


def cluster_file(**sections):
    path = Path("cluster.yaml")
    path.write_text(yaml.safe_dump({"shared": "/mnt/runs", **sections}), encoding="utf-8")
    return str(path)


KUBERNETES = {"image": "train:1", "kubernetes": {"volume_claim": "runs"}}
SKYPILOT = {"skypilot": {"bucket": "s3://runs", "setup": "pip install .", "secrets": ["HF_TOKEN"]}}


def test_a_job_is_printed_and_nothing_else(run, recipe, tmp_path):
    ended = run("train", str(recipe), "distributed.nodes=2", "--on", "slurm", "--time", "2h", "--partition", "gpu")
    assert ended.code == 0
    assert ended.out.startswith("#!/usr/bin/env bash\n#SBATCH --job-name=tiny\n#SBATCH --nodes=2\n")
    assert "#SBATCH --partition=gpu\n#SBATCH --time=02:00:00\n" in ended.out
    assert f"#SBATCH --chdir={tmp_path}\n" in ended.out
    assert ended.err == "No GPUs are asked for; --num-gpus N does.\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.yaml"]


@pytest.mark.parametrize(
    ("target", "sections", "name", "arguments"),
    [
        ("slurm", {}, "sbatch", []),
        ("skypilot", SKYPILOT, "sky", ["jobs", "launch", "--yes", "--detach-run", "--secret", "HF_TOKEN"]),
        ("kubernetes", KUBERNETES, "kubectl", ["create", "-f"]),
    ],
)
def test_a_job_is_submitted_where_the_cluster_has_a_command(
    target, sections, name, arguments, run, recipe, program_on_path
):
    output = "output_dir=out" if target == "slurm" else "output_dir=/mnt/runs/a"
    described = ["--cluster", cluster_file(**sections)] if target != "slurm" else []
    job = ("train", str(recipe), output, "--on", target, *described)
    ended = run(*job, "--submit")
    assert ended.code == 2
    assert ended.err.startswith(f"error: --submit: there is no `{name}` on the PATH. ")
    assert not Path("out").exists()
    programs = program_on_path(name)
    ended = run(*job, "--submit")
    assert (ended.code, ended.err) == (0, "")
    assert (programs / f"{name}.told").read_text().splitlines()[:-1] == arguments
    assert (programs / f"{name}.text").read_text() == run(*job).out


def test_a_run_that_lies_there_is_told_before_the_queue(run, recipe, program_on_path, tmp_path):
    programs = program_on_path("sbatch")
    resolved = tmp_path / "out" / "efficiency" / "recipe.resolved.yaml"
    resolved.parent.mkdir(parents=True)
    resolved.write_text("")
    ended = run("train", str(recipe), "--on", "slurm", "--submit")
    assert (ended.code, "already holds a run" in ended.err) == (2, True)
    assert not (programs / "sbatch.told").exists()
    assert run("train", str(recipe), "--on", "slurm", "--submit", "--overwrite").code == 0


ABOUT_A_JOB = "is about a cluster's job. Add --on slurm, --on skypilot or --on kubernetes, or leave"
ABOUT_THIS_MACHINE = "is about a run on this machine, and --on asks for a cluster's"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--on slrum", "--on: slrum is no kind of cluster that a job can be written for. Did you mean --on slurm?"),
        ("--submit", f"--submit: {ABOUT_A_JOB}"),
        ("--time 2h", f"--time: {ABOUT_A_JOB}"),
        ("--on slurm --dry-run", f"--dry-run: {ABOUT_THIS_MACHINE}"),
        ("--on slurm --node-rank 1", f"--node-rank: {ABOUT_THIS_MACHINE}"),
        ("--on slurm --nsys", f"--nsys: {ABOUT_THIS_MACHINE}"),
        ("--on slurm --time soon", "command line: --time soon: time_limit: is the text 'soon', but must be"),
        ("--on slurm --shared /mnt/runs", "r.yaml:7: output_dir: is out, which is not on the shared storage"),
        ("--on slurm --output no/such/folder", "--output: no/such/folder cannot be written: "),
        ("--on slurm --cluster gone.yaml", "gone.yaml: there is no such file. Check the path."),
    ],
)
def test_what_is_refused(arguments, told, run, recipe):
    ended = run("train", str(recipe), *arguments.split())
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"error: {told}")


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
