"""``hf-efficient submit``: the job of a cluster, printed, written or submitted."""

from pathlib import Path

import pytest
import yaml


def cluster_file(**sections):
    path = Path("cluster.yaml")
    path.write_text(yaml.safe_dump({"shared": "/mnt/runs", **sections}), encoding="utf-8")
    return str(path)


KUBERNETES = {"image": "train:1", "kubernetes": {"volume_claim": "runs", "node_selector": {"gpu": "H100"}}}
SKYPILOT = {"skypilot": {"bucket": "s3://runs", "setup": "pip install .", "secrets": ["HF_TOKEN"]}}


def test_a_job_is_printed_and_nothing_else(run, recipe, tmp_path):
    flags = ("--on", "slurm", "--time", "2h", "--partition", "gpu", "--dry-run")
    ended = run("submit", str(recipe), "distributed.nodes=2", *flags)
    assert ended.code == 0
    assert ended.out.startswith("#!/usr/bin/env bash\n#SBATCH --job-name=tiny\n#SBATCH --nodes=2\n")
    assert "#SBATCH --partition=gpu\n#SBATCH --time=02:00:00\n" in ended.out
    assert f"#SBATCH --chdir={tmp_path}\n" in ended.out
    assert ended.err == "The job asks for no GPUs. --num-gpus N asks for N on each machine.\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.yaml"]


@pytest.mark.parametrize(
    ("target", "sections", "name", "arguments"),
    [
        ("slurm", {}, "sbatch", []),
        ("skypilot", SKYPILOT, "sky", ["jobs", "launch", "--detach-run", "--secret", "HF_TOKEN"]),
        ("kubernetes", KUBERNETES, "kubectl", ["create", "-f"]),
    ],
)
def test_a_job_is_submitted_where_the_cluster_has_a_command(
    target, sections, name, arguments, run, recipe, program_on_path
):
    output = "output_dir=out" if target == "slurm" else "output_dir=/mnt/runs/a"
    described = ["--cluster", cluster_file(**sections)] if target != "slurm" else []
    job = ("submit", str(recipe), output, "--on", target, "--gpu", "H100", "--num-gpus", "2", *described)
    ended = run(*job)
    assert ended.code == 2
    assert ended.err.startswith(f"error: --on {target}: there is no `{name}` on the PATH. ")
    assert not Path("out").exists()
    programs = program_on_path(name)
    ended = run(*job)
    assert (ended.code, ended.err) == (0, "")
    assert (programs / f"{name}.told").read_text().splitlines()[:-1] == arguments
    assert (programs / f"{name}.text").read_text() == run(*job, "--dry-run").out


def test_the_flags_of_train_are_those_of_each_start(run, recipe):
    job = ("submit", str(recipe), "--on", "slurm", "--keep-going", "--dry-run")
    assert 'hf-efficient train "$recipe" ${again:+"$again"} --keep-going --debug\n' in run(*job, "--debug").out
    ended = run(*job, "distributed.nodes=2")
    assert (ended.code, ended.err.startswith("error: --keep-going: starts the processes of one machine")) == (2, True)


def test_skypilot_asks_unless_the_user_says_yes(run, recipe, program_on_path):
    programs = program_on_path("sky")
    job = ("submit", str(recipe), "output_dir=/mnt/runs/a", "--on", "skypilot", "--cluster", cluster_file(**SKYPILOT))
    assert run(*job, "--gpu", "H100", "--num-gpus", "2", "--yes").code == 0
    assert (programs / "sky.told").read_text().splitlines()[:3] == ["jobs", "launch", "--yes"]


def test_an_earlier_run_is_refused_before_the_queue(run, recipe, program_on_path, tmp_path):
    programs = program_on_path("sbatch")
    resolved = tmp_path / "out" / "efficiency" / "recipe.resolved.yaml"
    resolved.parent.mkdir(parents=True)
    resolved.write_text("recipe: {}\n")
    ended = run("submit", str(recipe), "--on", "slurm")
    assert (ended.code, "already holds a run" in ended.err) == (2, True)
    assert not (programs / "sbatch.told").exists()
    assert run("submit", str(recipe), "--on", "slurm", "--overwrite").code == 0


def test_num_gpus_is_the_number_of_processes_too(run, recipe):
    job = ("submit", str(recipe), "--on", "slurm", "--gpu", "H100", "--num-gpus", "8", "--dry-run")
    for more in ((), ("distributed.processes=auto",)):
        ended = run(*job, *more)
        assert (ended.code, ended.err) == (0, "")
        assert "#SBATCH --gres=gpu:H100:8\n" in ended.out
        assert "  processes: 8\n" in ended.out


def test_a_job_is_written_and_not_submitted(run, recipe, program_on_path):
    programs = program_on_path("sbatch")
    ended = run("submit", str(recipe), "--on", "slurm", "--num-gpus", "2", "--output", "job.sbatch")
    assert ended == (0, "", "job.sbatch is written. Submit it by: sbatch job.sbatch\n")
    assert Path("job.sbatch").read_text().startswith("#!/usr/bin/env bash\n")
    assert not (programs / "sbatch.told").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("", "--on: is missing. Write --on slurm, --on skypilot or --on kubernetes."),
        ("--on slrum", "--on: slrum is not a known kind of cluster. Did you mean --on slurm?"),
        ("--on slurm --dry-run --output a", "--output: --dry-run prints the job and writes no file. Leave one"),
        ("--on slurm --resume --overwrite", "--overwrite: --resume is given too. Leave one of them out."),
        (
            "--on slurm --num-gpus 4 distributed.processes=2",
            "--num-gpus: is 4, but distributed.processes=2 was written",
        ),
        ("--on slurm --gpu H100", "--gpu: names the kind of GPU, and their number is missing. Add --num-gpus N."),
        ("--on slurm --time soon", "command line: --time soon: time_limit: is the text 'soon', but must be"),
        ("--on slurm --shared /mnt/runs", "r.yaml:7: output_dir: is out, which is not on the shared storage"),
        ("--on slurm --output no/such/folder", "--output: there is no folder no/such."),
        ("--on slurm --cluster gone.yaml", "gone.yaml: there is no such file. Check the path."),
    ],
)
def test_what_is_refused(arguments, told, run, recipe):
    ended = run("submit", str(recipe), *arguments.split())
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"error: {told}")
