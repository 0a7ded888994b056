"""A job as a task of SkyPilot, for ``sky jobs launch``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hf_efficient.cluster.job import Job
from hf_efficient.cluster.node_script import node_script
from hf_efficient.errors import Problem, RecipeError
from hf_efficient.recipe.yaml_dump import dump_yaml

__all__ = ["skypilot_task"]

_REMEDY = "Install it in the cluster's file, skypilot.setup, or activate its environment: activate."
_PORT = 29500

# A recovered job has the same SKYPILOT_TASK_ID, and other machines, or another number on the same ones.
_START = """\
set -euo pipefail
job=$SKYPILOT_TASK_ID
attempt=$(echo "$SKYPILOT_NODE_IPS ${SKYPILOT_INTERNAL_JOB_ID:-}" | cksum | cut -d " " -f 1)
node_rank=$SKYPILOT_NODE_RANK
"""
_MEETING = """\
main_address=$(echo "$SKYPILOT_NODE_IPS" | head -n 1):{port}
"""


def skypilot_task(job: Job) -> str:
    """The text of the task's YAML.

    Raises:
        RecipeError: what SkyPilot needs is missing, or it cannot do what is asked for.
    """
    problems = list(_problems(job))
    if problems:
        raise RecipeError(problems)
    cluster, sky = job.cluster, job.cluster.skypilot
    mounted: dict[str, Any] = {"source": sky.bucket, "mode": "MOUNT_CACHED"}  # MOUNT alone cannot append to a file
    task = {
        "name": job.name,
        "workdir": ".",
        "num_nodes": job.nodes,
        "resources": _resources(job),
        "envs": dict(cluster.env) or None,
        "secrets": dict.fromkeys(sky.secrets) or None,
        "file_mounts": {cluster.shared: mounted} if sky.bucket is not None else None,
        "volumes": {cluster.shared: sky.volume} if sky.volume is not None else None,
        "setup": f"{sky.setup.rstrip()}\n" if sky.setup else None,
        "run": _run(job),
    }
    told = (
        f"# {' '.join(job.source.split())}, written by hf_efficient {job.version}. Submit it by: sky jobs launch FILE\n"
    )
    return told + dump_yaml({key: value for key, value in task.items() if value is not None}, blocks=True)


def _resources(job: Job) -> dict[str, Any]:
    cluster, sky = job.cluster, job.cluster.skypilot
    resources = {
        "infra": sky.infra,
        "accelerators": f"{job.gpus.kind}:{job.gpus.count}" if job.gpus is not None else None,
        "cpus": f"{cluster.cpus}+" if cluster.cpus is not None else None,
        "memory": f"{cluster.memory_gb:g}+" if cluster.memory_gb is not None else None,
        "use_spot": sky.spot,
        "disk_size": sky.disk_gb,
        "image_id": f"docker:{cluster.image}" if cluster.image is not None else None,
        # A preempted job is recovered as often as it takes; this counts the failures of the run.
        "job_recovery": {"max_restarts_on_errors": cluster.restarts},
    }
    return {key: value for key, value in resources.items() if value is not None}


def _run(job: Job) -> str:
    meeting = _MEETING.format(port=job.cluster.port or _PORT) if job.nodes > 1 else ""
    return _START + meeting + node_script(job, remedy=_REMEDY)


def _problems(job: Job) -> Iterator[Problem]:
    cluster, sky = job.cluster, job.cluster.skypilot
    if job.gpus is not None and job.gpus.kind is None:
        message = f"is {job.gpus.count}, but SkyPilot has to know of which type."
        yield Problem(cluster.where("gpus"), "gpus", message, f"Write, for instance, H100:{job.gpus.count}.")
    if (sky.bucket is None) == (sky.volume is None):
        told = "and a volume are both given" if sky.bucket is not None else "is missing, and no volume is given"
        message = f"{told}: one of the two is mounted at {cluster.shared}."
        yield Problem(cluster.where("skypilot.bucket"), "skypilot.bucket", message, "Write bucket: s3://NAME.")
    if cluster.image is None and not sky.setup:
        message = "is missing: SkyPilot's machines start without hf_efficient."
        remedy = (
            "Write the lines that install it, `pip install -e .` in a clone for instance, or an image that holds it."
        )
        yield Problem(cluster.where("skypilot.setup"), "skypilot.setup", message, remedy)
    if job.seconds is not None:
        message = "is given, but SkyPilot ends no job by the clock."
        remedy = "Write efficiency.budget.hours=N in the recipe: the run saves and stops."
        yield Problem(cluster.where("time_limit"), "time_limit", message, remedy)
