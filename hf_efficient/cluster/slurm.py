"""A job as Slurm's batch script."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from hf_efficient.cluster.amounts import clock_time
from hf_efficient.cluster.job import Job
from hf_efficient.cluster.node_script import environment_lines, here_document, node_script
from hf_efficient.errors import Problem, RecipeError

__all__ = ["sbatch_script"]

_REMEDY = "Give the lines that activate its environment: activate, in the cluster's file."
_PORT = "$((20000 + SLURM_JOB_ID % 10000))"
"""Below the ports that Linux hands out by itself (32768 and up); jobs that share a machine get one each."""

_SCRIPT = """\
#!/usr/bin/env bash
{options}
# {source}, written by hf_efficient {version}. Submit it by: sbatch FILE

set -euo pipefail

{environment}export job=$SLURM_JOB_ID attempt=${{SLURM_RESTART_COUNT:-0}}
{meeting}
# What every machine runs.
IFS= read -r -d '' on_each_machine {document}

# {grace} s before the time limit the processes of the run are told to end.
time_is_up=""
trap 'time_is_up=1; scancel --signal=TERM "$SLURM_JOB_ID" || true' USR1
srun {srun_options} \\
  bash -c "$on_each_machine" &
step=$!
code=0
wait "$step" || code=$?
if [[ -n $time_is_up ]]; then  # the signal ended the wait, not the step
  code=0
  wait "$step" || code=$?
fi

if [[ -n $time_is_up && $code -ne 0 ]]; then
  if (( attempt < {restarts} )); then
    echo "The time limit is near: the job goes back to the queue, and on from its last checkpoint."
    scontrol requeue "$SLURM_JOB_ID"
    sleep 60  # Slurm ends this script
  fi
  echo "error: the time limit is near, and the job was started again {restarts} times already (restarts)." >&2
fi
exit "$code"
"""
_MEETING = """\
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export main_address=${{hosts[0]}}:{port}
"""


def sbatch_script(job: Job) -> str:
    """The text of the batch script.

    Raises:
        RecipeError: the cluster's description asks for what Slurm does not do by itself.
    """
    cluster = job.cluster
    if cluster.image is not None:
        message = "is given, but Slurm runs containers by a plugin of the site's own."
        remedy = "Leave it out, and write the plugin's option: slurm.srun_options: [--container-image=...]."
        raise RecipeError([Problem(cluster.where("image"), "image", message, remedy)])
    return _SCRIPT.format(
        options="\n".join(f"#SBATCH {shlex.quote(option)}" for option in _options(job)),
        source=" ".join(job.source.split()),
        version=job.version,
        environment=environment_lines(job),
        meeting=_MEETING.format(port=cluster.port or _PORT) if job.nodes > 1 else "",
        document=here_document(_node(job), "END_OF_NODE", " || true"),
        grace=cluster.grace_seconds,
        srun_options=" ".join(shlex.quote(option) for option in _srun_options(job)),
        restarts=cluster.restarts,
    )


def _node(job: Job) -> str:
    return f"set -euo pipefail\nnode_rank=$SLURM_NODEID\n{node_script(job, remedy=_REMEDY)}"


def _options(job: Job) -> Iterator[str]:
    cluster, slurm = job.cluster, job.cluster.slurm
    yield f"--job-name={job.name}"
    yield f"--nodes={job.nodes}"
    yield "--ntasks-per-node=1"
    if job.gpus is not None:
        yield f"--gres=gpu:{f'{job.gpus.kind}:' if job.gpus.kind else ''}{job.gpus.count}"
    # Without either, a task gets one core.
    yield f"--cpus-per-task={cluster.cpus}" if cluster.cpus is not None else "--exclusive"
    if cluster.memory_gb is not None:
        yield f"--mem={round(cluster.memory_gb * 1000)}M"
    elif cluster.cpus is None:
        yield "--mem=0"  # all of it
    for name in ("partition", "account", "qos", "constraint", "reservation"):
        if value := getattr(slurm, name):
            yield f"--{name}={value}"
    if job.seconds is not None:
        yield f"--time={clock_time(job.seconds)}"
    yield f"--signal=B:USR1@{cluster.grace_seconds}"
    yield "--requeue" if cluster.restarts else "--no-requeue"
    yield "--open-mode=append"
    yield f"--chdir={job.directory}"
    yield "--output=%x-%j.log"
    yield from slurm.sbatch_options


def _srun_options(job: Job) -> Iterator[str]:
    yield f"--nodes={job.nodes}"
    yield f"--ntasks={job.nodes}"
    yield "--ntasks-per-node=1"
    # A run that one machine's processes left cannot go on.
    yield "--kill-on-bad-exit=1"
    yield "--cpu-bind=none"
    yield from job.cluster.slurm.srun_options
