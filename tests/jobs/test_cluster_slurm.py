"""The batch script: what it asks Slurm for, and that bash can read it. ``test_cluster_real_slurm`` runs it."""

from __future__ import annotations

import subprocess

import pytest
from tests.cluster.jobs import cluster_of, job_for

from hf_efficient.errors import RecipeError
from hf_efficient.jobs.targets import sbatch_script


def options(*overrides, directory="/home/me/project", **keys):
    script = sbatch_script(job_for("slurm", cluster_of(**keys), *overrides, directory=directory))
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]


def test_machines_of_the_jobs_own():
    assert options("distributed.nodes=2", "distributed.processes=auto", gpus="h100:8", time_limit="36h") == [
        "--job-name=quickstart-lora",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--gres=gpu:h100:8",
        "--exclusive",
        "--mem=0",
        "--time=1-12:00:00",
        "--signal=B:USR1@120",
        "--requeue",
        "--open-mode=append",
        "--chdir=/home/me/project",
        "--output=%x-%j.log",
    ]


def test_parts_of_machines_and_all_that_a_site_may_ask():
    slurm = {
        "partition": "gpu",
        "account": "a",
        "qos": "high",
        "constraint": "h100&ib",
        "reservation": "r",
        "sbatch_options": ["--mail-type=END"],
    }
    assert options(
        gpus=1, cpus=16, memory_gb=64.5, restarts=0, grace_seconds=300, slurm=slurm, directory="/home/me/a b"
    ) == [
        "--job-name=quickstart-lora",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--gres=gpu:1",
        "--cpus-per-task=16",
        "--mem=64500M",
        "--partition=gpu",
        "--account=a",
        "--qos=high",
        "'--constraint=h100&ib'",
        "--reservation=r",
        "--signal=B:USR1@300",
        "--no-requeue",
        "--open-mode=append",
        "'--chdir=/home/me/a b'",
        "--output=%x-%j.log",
        "--mail-type=END",
    ]


def test_srun_and_the_environment():
    keys = {"env": {"A": "it's $B"}, "slurm": {"srun_options": ["--container-image=a b"]}}
    script = sbatch_script(job_for("slurm", cluster_of(**keys)))
    assert "export A='it'\"'\"'s $B'\n" in script
    assert "--kill-on-bad-exit=1 --cpu-bind=none '--container-image=a b' \\\n" in script
    assert "main_address" not in script


@pytest.mark.parametrize(("port", "told"), [(None, "$((20000 + SLURM_JOB_ID % 10000))"), (4000, "4000")])
def test_where_machines_meet(port, told):
    script = sbatch_script(job_for("slurm", cluster_of(port=port), "distributed.nodes=2"))
    assert f"export main_address=${{hosts[0]}}:{told}\n" in script


def test_containers_are_the_sites_own():
    with pytest.raises(RecipeError, match=r"the cluster: image: is given, but Slurm runs containers by a plugin"):
        sbatch_script(job_for("slurm", cluster_of(image="a")))
