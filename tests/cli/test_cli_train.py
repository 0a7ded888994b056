"""``hf-efficient train``: what is launched, what is checked before, and the job of a cluster."""

from __future__ import annotations

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
from hf_efficient.cli.train import prove_run, run_proven, train
from hf_efficient.errors import PreflightError, RecipeError
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
        "command with --resume goes on from its last checkpoint.\n"
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


FAKE_NSYS = """\
#!/bin/sh
printf '%s\\n' "$@" > "$NSYS_ARGUMENTS"
shift
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""
FAKE_ACCELERATE = """\
#!/bin/sh
printf '%s\\n' "$@" > "$ACCELERATE_ARGUMENTS"
exit 0
"""


@pytest.fixture
def recipe_file(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"name: t\nmodel: {{id: m}}\ndata: {{train: [{{path: a}}]}}\noutput_dir: {tmp_path / 'out'}\n", encoding="utf-8"
    )
    return path


def program(path, text):
    path.write_text(text)
    path.chmod(0o755)


def test_a_launch_under_nsight(recipe_file, tmp_path, monkeypatch, capsys):
    programs = tmp_path / "bin"
    programs.mkdir()
    program(programs / "nsys", FAKE_NSYS)
    program(programs / "accelerate", FAKE_ACCELERATE)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("NSYS_ARGUMENTS", str(tmp_path / "nsys.txt"))
    monkeypatch.setenv("ACCELERATE_ARGUMENTS", str(tmp_path / "accelerate.txt"))
    monkeypatch.setattr("hf_efficient.launch.command._accelerate", lambda: "accelerate")
    with pytest.raises(SystemExit) as ended:
        train(str(recipe_file), ["train.max_steps=9"], nsys=True)
    assert ended.value.code == 0
    told = (tmp_path / "nsys.txt").read_text().splitlines()
    assert told[0] == "profile"
    assert f"--output={tmp_path / 'out' / 'efficiency' / 'profile' / 'nsys'}" in told
    launched = (tmp_path / "accelerate.txt").read_text().splitlines()
    assert launched[0] == "launch"
    assert launched[-4:] == [
        str(recipe_file),
        "train.max_steps=9",
        "efficiency.profile.nvtx=true",
        "efficiency.profile.capture={}",
    ]
    assert capsys.readouterr().out.startswith("$ nsys profile --trace=cuda,nvtx")


def test_processes_that_do_not_divide_the_global_batch(recipe_file, monkeypatch):
    """``auto`` is counted here, before anything is launched."""
    monkeypatch.setattr("hf_efficient.facts.environment.accelerator_count", lambda: 3)
    batch = ["distributed.processes=auto", "distributed.global_batch_size=64"]
    with pytest.raises(RecipeError, match=r"64, which 24 sequences at a time .* 8 x 3 processes\) do not divide"):
        train(str(recipe_file), batch, dry_run=True)
    with pytest.raises(RecipeError, match="24 sequences at a time"):
        launch_page(load_recipe(recipe_file, batch), "r.yaml", batch, as_json=False)


SUBMITS = """\
#!/bin/sh
printf '%s\\n' "$@" > {told}
for file; do :; done
cat "$file" > {text}
exit {code}
"""


@pytest.fixture
def program_on_path(tmp_path, monkeypatch):
    """Put a cluster's command on the PATH that writes down how it was called."""

    def put(name, code=0):
        folder = tmp_path / "bin"
        folder.mkdir()
        path = folder / name
        path.write_text(SUBMITS.format(told=tmp_path / "told", text=tmp_path / "text", code=code))
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    return put


@pytest.fixture
def nothing_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


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
    assert ended.err == "No GPUs are asked for; --gpus TYPE:COUNT does.\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.yaml"]


@pytest.mark.parametrize(
    ("target", "sections", "name", "arguments"),
    [
        ("slurm", {}, "sbatch", []),
        ("skypilot", SKYPILOT, "sky", ["jobs", "launch", "--yes", "--detach-run", "--secret", "HF_TOKEN"]),
        ("kubernetes", KUBERNETES, "kubectl", ["create", "-f"]),
    ],
)
def test_a_job_is_submitted(target, sections, name, arguments, run, recipe, program_on_path, tmp_path):
    program_on_path(name)
    output = "output_dir=out" if target == "slurm" else "output_dir=/mnt/runs/a"
    described = ["--cluster", cluster_file(**sections)] if target != "slurm" else []
    ended = run("train", str(recipe), output, "--on", target, *described, "--submit")
    assert (ended.code, ended.err) == (0, "")
    assert (tmp_path / "told").read_text().splitlines()[:-1] == arguments
    printed = run("train", str(recipe), output, "--on", target, *described).out
    assert (tmp_path / "text").read_text() == printed


@pytest.mark.parametrize(
    ("target", "sections", "name"),
    [("slurm", {}, "sbatch"), ("skypilot", SKYPILOT, "sky"), ("kubernetes", KUBERNETES, "kubectl")],
)
def test_a_command_that_is_not_installed_is_named(target, sections, name, run, recipe, nothing_installed):
    output = f"output_dir=/mnt/runs/{target}"
    ended = run("train", str(recipe), output, "--on", target, "--cluster", cluster_file(**sections), "--submit")
    assert ended.code == 2
    assert ended.err.startswith(f"error: --submit: there is no `{name}` on the PATH. ")
    assert not Path("/mnt/runs/slurm").exists()


def test_a_run_that_lies_there_is_told_before_the_queue(run, recipe, program_on_path, tmp_path):
    program_on_path("sbatch")
    resolved = tmp_path / "out" / "efficiency" / "recipe.resolved.yaml"
    resolved.parent.mkdir(parents=True)
    resolved.write_text("")
    ended = run("train", str(recipe), "--on", "slurm", "--submit")
    assert ended.code == 2
    assert "already holds a run" in ended.err
    assert not (tmp_path / "told").exists()
    assert run("train", str(recipe), "--on", "slurm", "--submit", "--overwrite").code == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--on", "slrum"],
            "--on: slrum is no kind of cluster that a job can be written for. Did you mean --on slurm?",
        ),
        (
            ["--submit"],
            "--submit: is about a cluster's job. Add --on slurm, --on skypilot or --on kubernetes, or leave",
        ),
        (["--time", "2h"], "--time: is about a cluster's job. Add --on slurm"),
        (["--on", "slurm", "--dry-run"], "--dry-run: is about a run on this machine, and --on asks for a cluster's"),
        (["--on", "slurm", "--node-rank", "1"], "--node-rank: is about a run on this machine, and --on asks"),
        (["--on", "slurm", "--nsys"], "--nsys: is about a run on this machine"),
        (["--on", "slurm", "--time", "soon"], "command line: --time soon: time_limit: is the text 'soon', but must be"),
        (
            ["--on", "slurm", "--shared", "/mnt/runs"],
            "r.yaml:7: output_dir: is out, which is not on the shared storage",
        ),
        (["--on", "slurm", "--output", "no/such/folder"], "--output: no/such/folder cannot be written: "),
        (["--on", "slurm", "--cluster", "gone.yaml"], "gone.yaml: there is no such file. Check the path."),
    ],
)
def test_what_is_refused(arguments, told, run, recipe):
    ended = run("train", str(recipe), *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"error: {told}")


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


@pytest.mark.slow
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
