"""The command that hands a job to its cluster."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from hf_efficient.cluster.job import Job, Target
from hf_efficient.cluster.kubernetes import kubernetes_job
from hf_efficient.cluster.skypilot import skypilot_task
from hf_efficient.cluster.slurm import sbatch_script
from hf_efficient.errors import SetupError

__all__ = ["check_program", "job_text", "submit", "submit_command"]

_PROGRAMS: dict[Target, tuple[str, str]] = {
    "slurm": ("sbatch", "Slurm's commands are on the cluster's login machines"),
    "skypilot": ("sky", 'SkyPilot comes with `pip install "skypilot[aws]"` or another cloud'),
    "kubernetes": ("kubectl", "Kubernetes' command comes from https://kubernetes.io/docs/tasks/tools"),
}
_TEXTS = {"slurm": sbatch_script, "skypilot": skypilot_task, "kubernetes": kubernetes_job}


def job_text(target: Target, job: Job) -> str:
    """What the cluster is given.

    Raises:
        RecipeError: the description lacks something that this kind of cluster needs.
    """
    return _TEXTS[target](job)


def check_program(target: Target) -> None:
    """The cluster's command is on the PATH.

    Raises:
        SetupError: it is not.
    """
    program, home = _PROGRAMS[target]
    if shutil.which(program) is None:
        raise SetupError(
            f"--submit: there is no `{program}` on the PATH. {home}; run this there, or write the job to a file "
            "(--output FILE) and take it there."
        )


def submit_command(target: Target, job: Job, file: str) -> list[str]:
    """The command that submits a file."""
    if target == "slurm":
        return ["sbatch", file]
    if target == "kubernetes":
        return ["kubectl", "create", "-f", file]
    secrets = [part for name in job.cluster.skypilot.secrets for part in ("--secret", name)]
    return ["sky", "jobs", "launch", "--yes", "--detach-run", *secrets, file]


def submit(target: Target, job: Job, text: str, file: Path | None) -> int:
    """Hand the job over, and return the exit code of the cluster's command.

    Args:
        target: which kind of cluster.
        job: the job.
        text: of the job.
        file: where it was written; None: to a file of this moment.
    """
    with tempfile.TemporaryDirectory() as folder:
        if file is None:
            file = Path(folder) / f"{job.name}.{'sbatch' if target == 'slurm' else 'yaml'}"
            file.write_text(text, encoding="utf-8")
        command = submit_command(target, job, str(file))
        print(f"$ {shlex.join(command)}", flush=True)
        return subprocess.run(command, check=False).returncode
