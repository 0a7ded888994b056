"""``hf-efficient train --on``: a job printed, written, submitted, refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

SUBMITS = """\
#!/bin/sh
printf '%s\\n' "$@" > {told}
for file; do :; done
cat "$file" > {text}
exit {code}
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
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


def test_a_job_is_written(run, recipe):
    ended = run("train", str(recipe), "--on", "slurm", "--gpus", "1", "--output", "job.sbatch", "--overwrite")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == "job.sbatch is written. Submit it by: sbatch job.sbatch\n"
    assert '"${again:---overwrite}"' in Path("job.sbatch").read_text()


@pytest.mark.parametrize(
    ("target", "sections", "name", "arguments"),
    [
        ("slurm", {}, "sbatch", []),
        ("skypilot", SKYPILOT, "sky", ["jobs", "launch", "--yes", "--detach-run", "--secret", "HF_TOKEN"]),
        ("kubernetes", KUBERNETES, "kubectl", ["create", "-f"]),
    ],
)
def test_a_job_is_submitted(target, sections, name, arguments, run, recipe, program, tmp_path):
    program(name)
    output = "output_dir=out" if target == "slurm" else "output_dir=/mnt/runs/a"
    described = ["--cluster", cluster_file(**sections)] if target != "slurm" else []
    ended = run("train", str(recipe), output, "--on", target, *described, "--submit")
    assert (ended.code, ended.err) == (0, "")
    assert (tmp_path / "told").read_text().splitlines()[:-1] == arguments
    printed = run("train", str(recipe), output, "--on", target, *described).out
    assert (tmp_path / "text").read_text() == printed


def test_the_clusters_own_refusal_is_passed_on(run, recipe, program):
    program("sbatch", code=7)
    assert run("train", str(recipe), "--on", "slurm", "--submit").code == 7


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


def test_a_run_that_lies_there_is_told_before_the_queue(run, recipe, program, tmp_path):
    program("sbatch")
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


def test_the_help_shows_examples(run):
    out = run("train", "--help").out
    assert "--on slurm --gpus 8 --time 12h" in " ".join(out.split())
    assert "--submit" in out
