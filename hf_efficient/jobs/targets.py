"""The text of a job for Slurm, SkyPilot and Kubernetes around one node script, and the command that submits it.

Kubernetes means Kubeflow Trainer 2.2 and newer: a TrainJob, and a TrainingRuntime of its own with a restart policy,
which the installed ``torch-distributed`` lacks.
"""

import math
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hf_efficient.errors import Problem, RecipeError, SetupError
from hf_efficient.jobs.cluster import clock_time
from hf_efficient.jobs.job import Job, Target
from hf_efficient.recipe.writing import dump_yaml

_NODE = """\
{activate}command -v hf-efficient > /dev/null || {{
  echo "error: $HOSTNAME: there is no hf-efficient on the PATH. {remedy}" >&2
  exit 2
}}
recipe=$(mktemp -d)/{name}.yaml
cat > "$recipe" {document}
# --resume where an earlier start of this job has begun to train, else nothing.
again=$(hf-efficient check-node {output_dir} --job "$job" --attempt "$attempt" \\
  --nodes {nodes} --node-rank "$node_rank" --num-gpus {gpus} --written-by {version})
exec hf-efficient train "$recipe" {overrides}{switch}{debug}{place}
"""


def node_script(job: Job, *, remedy: str) -> str:
    """Shell lines that expect ``job``, ``attempt``, ``node_rank`` and, for several machines, ``main_address``. The last
    becomes ``hf-efficient train``, which a signal to end reaches."""
    activate = job.cluster.activate
    return _NODE.format(
        # Lines of sites and environments often use unset variables.
        activate=f"set +u\n{activate.rstrip()}\nset -u\n" if activate else "",
        remedy=remedy,
        name=job.name,
        document=here_document(job.recipe, "END_OF_RECIPE"),
        output_dir=shlex.quote(job.output_dir),
        nodes=job.nodes,
        gpus=job.processes if job.gpus is not None else 0,
        version=job.version,
        switch=f'"${{again:-{job.switch}}}"' if job.switch else '${again:+"$again"}',
        overrides="".join(f"{one} " for one in job.overrides),
        debug=" --debug" if job.debug else "",
        place=' --node-rank "$node_rank" --main-address "$main_address"' if job.nodes > 1 else "",
    )


def here_document(text: str, end: str, after: str = "") -> str:
    """``<<'END'``, the text as it is, and an end, made longer where a line of the text is the same."""
    lines = text.rstrip("\n").split("\n")
    while end in lines:
        end += "_"
    return "\n".join([f"<<'{end}'{after}", *lines, end])


_PORT = "$((20000 + SLURM_JOB_ID % 10000))"
"""Below the ports that Linux hands out by itself (32768 and up); jobs that share a machine get one each."""

_SLURM = """\
#!/usr/bin/env bash
{options}
{written}sbatch FILE

set -euo pipefail

{environment}export job=$SLURM_JOB_ID attempt=${{SLURM_RESTART_COUNT:-0}}
{meeting}
# What every machine runs.
IFS= read -r -d '' on_each_machine {document}

# {grace} s before the time limit the processes of the run get the signal to end.
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
    echo "The time limit is near: the job goes back to the queue, and resumes from its last checkpoint."
    scontrol requeue "$SLURM_JOB_ID"
    sleep 60  # Slurm ends this script
  fi
  echo "error: the time limit is near, and the job was started again {restarts} times already (restarts)." >&2
fi
exit "$code"
"""
_SLURM_MEETING = """\
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export main_address=${{hosts[0]}}:{port}
"""


def sbatch_script(job: Job) -> str:
    cluster = job.cluster
    if cluster.is_typed("image"):
        message = "is given, but Slurm runs containers by a plugin of the site's own."
        remedy = "Leave it out, and write the plugin's option: slurm.srun_options: [--container-image=...]."
        raise RecipeError([Problem(cluster.where("image"), "image", message, remedy)])
    remedy = "Give the lines that activate its environment: activate, in the cluster's file."
    node = f"set -euo pipefail\nnode_rank=$SLURM_NODEID\n{node_script(job, remedy=remedy)}"
    return _SLURM.format(
        options="\n".join(f"#SBATCH {shlex.quote(option)}" for option in _sbatch_options(job)),
        written=_written(job),
        environment="".join(f"export {name}={shlex.quote(value)}\n" for name, value in cluster.env.items()),
        meeting=_SLURM_MEETING.format(port=cluster.port or _PORT) if job.nodes > 1 else "",
        document=here_document(node, "END_OF_NODE", " || true"),
        grace=cluster.grace_seconds,
        srun_options=" ".join(shlex.quote(option) for option in _srun_options(job)),
        restarts=cluster.restarts,
    )


def _sbatch_options(job: Job) -> Iterator[str]:
    cluster, slurm = job.cluster, job.cluster.slurm
    yield from (f"--job-name={job.name}", f"--nodes={job.nodes}", "--ntasks-per-node=1")
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
    yield from ("--open-mode=append", f"--chdir={job.directory}", "--output=%x-%j.log", *slurm.sbatch_options)


def _srun_options(job: Job) -> list[str]:
    # Without the processes of one machine a run cannot continue: --kill-on-bad-exit.
    own = [f"--nodes={job.nodes}", f"--ntasks={job.nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
    return [*own, "--cpu-bind=none", *job.cluster.slurm.srun_options]


# A recovered job has the same SKYPILOT_TASK_ID, and other machines, or another number on the same ones.
_SKYPILOT_START = """\
set -euo pipefail
job=$SKYPILOT_TASK_ID
attempt=$(echo "$SKYPILOT_NODE_IPS ${SKYPILOT_INTERNAL_JOB_ID:-}" | cksum | cut -d " " -f 1)
node_rank=$SKYPILOT_NODE_RANK
"""
_SKYPILOT_MEETING = 'main_address=$(echo "$SKYPILOT_NODE_IPS" | head -n 1):{port}\n'


def skypilot_task(job: Job) -> str:
    _refuse(_skypilot_problems(job))
    cluster, sky = job.cluster, job.cluster.skypilot
    remedy = "Install it in the cluster's file, skypilot.setup, or activate its environment: activate."
    meeting = _SKYPILOT_MEETING.format(port=cluster.port or 29500) if job.nodes > 1 else ""
    task = {
        "name": job.name,
        "workdir": ".",
        "num_nodes": job.nodes,
        "resources": {
            "infra": sky.infra,
            "accelerators": f"{job.gpus.kind}:{job.gpus.count}" if job.gpus is not None else None,
            "cpus": f"{cluster.cpus}+" if cluster.cpus is not None else None,
            "memory": f"{cluster.memory_gb:g}+" if cluster.memory_gb is not None else None,
            "use_spot": sky.spot,
            "disk_size": sky.disk_gb,
            "image_id": f"docker:{cluster.image}" if cluster.image is not None else None,
            # A preempted job is recovered as often as it takes; this counts the failures of the run.
            "job_recovery": {"max_restarts_on_errors": cluster.restarts},
        },
        "envs": dict(cluster.env) or None,
        # MOUNT alone cannot append to a file.
        "file_mounts": {cluster.shared: {"source": sky.bucket, "mode": "MOUNT_CACHED"}} if sky.bucket else None,
        "volumes": {cluster.shared: sky.volume} if sky.volume is not None else None,
        "setup": f"{sky.setup.rstrip()}\n" if sky.setup else None,
        "run": _SKYPILOT_START + meeting + node_script(job, remedy=remedy),
    }
    filled = _filled(task)
    if sky.secrets:
        filled["secrets"] = dict.fromkeys(sky.secrets)  # null: sky takes their values from the environment
    return f"{_written(job)}sky jobs launch FILE\n" + dump_yaml(filled, blocks=True)


WRITTEN_MARK = ". Submit it by: "  # in the head of every job of ours


def _written(job: Job) -> str:
    return f"# {' '.join(job.source.split())}, written by hf_efficient {job.version}{WRITTEN_MARK}"


def _refuse(problems: Iterator[Problem]) -> None:
    found = list(problems)
    if found:
        raise RecipeError(found)


def _skypilot_problems(job: Job) -> Iterator[Problem]:
    cluster, sky = job.cluster, job.cluster.skypilot
    if job.gpus is not None and job.gpus.kind is None:
        message = f"is {job.gpus.count}, but SkyPilot needs their type."
        yield Problem(
            cluster.where("gpus"),
            "gpus",
            message,
            f"Write --gpu H100 --num-gpus {job.gpus.count}, or gpus: H100:{job.gpus.count}.",
        )
    if (sky.bucket is None) == (sky.volume is None):
        fault = "and a volume are both given" if sky.bucket is not None else "is missing, and no volume is given"
        message = f"{fault}: one of the two is mounted at {cluster.shared}."
        yield Problem(cluster.where("skypilot.bucket"), "skypilot.bucket", message, "Write bucket: s3://NAME.")
    if cluster.image is None and not sky.setup:
        message = "is missing: SkyPilot's machines start without hf_efficient."
        remedy = (
            "Write the lines that install it, `pip install -e '.[recipes,quantization]'` in a clone for instance, or "
            "an image that holds it."
        )
        yield Problem(cluster.where("skypilot.setup"), "skypilot.setup", message, remedy)
    if cluster.is_typed("time_limit"):
        message = "is given, but SkyPilot ends no job by the clock."
        remedy = "Write budget.hours=N in the recipe: the run saves and stops."
        yield Problem(cluster.where("time_limit"), "time_limit", message, remedy)


_API = "trainer.kubeflow.org/v1alpha1"
_BAD_INPUT = 2  # the exit code of hf-efficient for what another start would not cure

# The launcher would read PET_* as options of its own.
_KUBERNETES_START = """\
set -euo pipefail
node_rank=$PET_NODE_RANK
{meeting}unset "${{!PET_@}}"
mkdir -p {shared}
cd {shared}
"""
_KUBERNETES_MEETING = "main_address=$PET_MASTER_ADDR:{port}\n"


def kubernetes_job(job: Job) -> str:
    _refuse(_kubernetes_problems(job))
    documents = [dump_yaml(_filled(one), blocks=True) for one in (_runtime(job), _train_job(job))]
    return f"{_written(job)}kubectl create -f FILE\n" + "---\n".join(documents)


def _train_job(job: Job) -> dict[str, Any]:
    cluster = job.cluster
    queue = cluster.kubernetes.queue
    return {
        "apiVersion": _API,
        "kind": "TrainJob",
        "metadata": _metadata(job, {"kueue.x-k8s.io/queue-name": queue} if queue is not None else None),
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": job.name},
            "activeDeadlineSeconds": job.seconds,
            "trainer": {
                "image": cluster.image,
                "numNodes": job.nodes,
                "numProcPerNode": job.processes,
                "resourcesPerNode": _kubernetes_resources(job),
                "env": [
                    # Of the JobSet that Kubeflow Trainer makes: the same for all pods, another one after a restart.
                    _from_label("job", "jobset.sigs.k8s.io/jobset-uid"),
                    _from_label("attempt", "jobset.sigs.k8s.io/restart-attempt"),
                    *({"name": name, "value": value} for name, value in cluster.env.items()),
                ],
                "command": ["bash", "-c", _pod_script(job)],
            },
        },
    }


def _runtime(job: Job) -> dict[str, Any]:
    restarts = {"action": "FailJobSet", "name": "badInput", "onJobFailureReasons": ["PodFailurePolicy"]}
    bad_input = {"containerName": "node", "operator": "In", "values": [_BAD_INPUT]}
    pods = {
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": bad_input}]},
        "template": {"spec": _pod(job)},
    }
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    job_set = {
        # All pods start again where one failed; bad input fails the job at once.
        "failurePolicy": {"maxRestarts": job.cluster.restarts, "rules": [restarts]},
        "replicatedJobs": [{"name": "node", "template": {"metadata": {"labels": labels}, "spec": pods}}],
    }
    return {
        "apiVersion": _API,
        "kind": "TrainingRuntime",
        "metadata": _metadata(job, {"trainer.kubeflow.org/framework": "torch"}),
        "spec": {"mlPolicy": {"numNodes": job.nodes, "torch": {}}, "template": {"spec": job_set}},
    }


def _pod(job: Job) -> dict[str, Any]:
    cluster, kubernetes = job.cluster, job.cluster.kubernetes
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": cluster.grace_seconds,
        "serviceAccountName": kubernetes.service_account,
        "imagePullSecrets": [{"name": name} for name in kubernetes.image_pull_secrets],
        "nodeSelector": dict(kubernetes.node_selector) or None,
        "tolerations": [dict(one) for one in kubernetes.tolerations],
        "containers": [
            {
                "name": "node",
                "image": cluster.image,
                "envFrom": [{"secretRef": {"name": name}} for name in kubernetes.secrets],
                "volumeMounts": [
                    {"name": "shared", "mountPath": cluster.shared},
                    {"name": "shm", "mountPath": "/dev/shm"},
                ],
            }
        ],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": kubernetes.volume_claim}},
            # NCCL and the workers of a data loader pass tensors through it; a container's own has 64 MB.
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }


def _kubernetes_resources(job: Job) -> dict[str, Any]:
    cluster = job.cluster
    amounts: dict[str, Any] = {
        "cpu": str(cluster.cpus) if cluster.cpus is not None else None,
        "memory": f"{math.ceil(cluster.memory_gb * 1000)}M" if cluster.memory_gb is not None else None,
    }
    gpus = {cluster.kubernetes.gpu_resource: str(job.gpus.count)} if job.gpus is not None else {}
    return {"requests": {**amounts, **gpus}, "limits": {"memory": amounts["memory"], **gpus}}


def _pod_script(job: Job) -> str:
    remedy = "Name an image that holds it, or activate its environment: activate, in the cluster's file."
    meeting = _KUBERNETES_MEETING.format(port=job.cluster.port or "$PET_MASTER_PORT") if job.nodes > 1 else ""
    start = _KUBERNETES_START.format(meeting=meeting, shared=shlex.quote(str(job.cluster.shared)))
    return start + node_script(job, remedy=remedy)


def _metadata(job: Job, labels: dict[str, str] | None) -> dict[str, Any]:
    return {"name": job.name, "namespace": job.cluster.kubernetes.namespace, "labels": labels}


def _from_label(name: str, label: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}}


def _filled(value: Any) -> Any:
    """Without what nobody gave: None, and what is empty without it. ``torch: {}`` and the like stay as written."""
    if isinstance(value, dict):
        kept = {key: _filled(below) for key, below in value.items()}
        kept = {key: below for key, below in kept.items() if below is not None and below != []}
        return kept if kept or not value else None
    return [_filled(one) for one in value] if isinstance(value, list) else value


def _kubernetes_problems(job: Job) -> Iterator[Problem]:
    cluster, kubernetes = job.cluster, job.cluster.kubernetes
    if cluster.image is None:
        message = "is missing: a pod runs a container."
        yield Problem(cluster.where("image"), "image", message, "Name one that holds hf_efficient (--image NAME).")
    if kubernetes.volume_claim is None:
        message = f"is missing: nothing else is mounted at {cluster.shared}."
        remedy = "Write the name of a PersistentVolumeClaim that many pods may write to (ReadWriteMany)."
        yield Problem(cluster.where("kubernetes.volume_claim"), "kubernetes.volume_claim", message, remedy)
    if job.gpus is not None and job.gpus.kind is not None and not kubernetes.node_selector:
        message = f"names {job.gpus.kind}, but Kubernetes chooses machines by their labels."
        remedy = (
            f"Write gpus: {job.gpus.count}, and kubernetes.node_selector: "
            "{nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}, for instance."
        )
        yield Problem(cluster.where("gpus"), "gpus", message, remedy)


_PROGRAMS: dict[Target, tuple[str, str]] = {
    "slurm": ("sbatch", "Slurm's commands are on the cluster's login machines"),
    "skypilot": ("sky", 'SkyPilot comes with `pip install "skypilot[aws]"` or another cloud'),
    "kubernetes": ("kubectl", "Kubernetes' command comes from https://kubernetes.io/docs/tasks/tools"),
}
TEXTS = {"slurm": sbatch_script, "skypilot": skypilot_task, "kubernetes": kubernetes_job}


def check_program(target: Target) -> None:
    program, home = _PROGRAMS[target]
    if shutil.which(program) is None:
        raise SetupError(
            f"--on {target}: there is no `{program}` on the PATH. {home}. Run this command there, or write the job to "
            "a file (--output FILE) and take it there."
        )


def submit_command(target: Target, job: Job, file: str, *, yes: bool = False) -> list[str]:
    """``yes``: SkyPilot starts its machines without asking."""
    if target == "slurm":
        return ["sbatch", file]
    if target == "kubernetes":
        return ["kubectl", "create", "-f", file]
    secrets = [part for name in job.cluster.skypilot.secrets for part in ("--secret", name)]
    return ["sky", "jobs", "launch", *["--yes"] * yes, "--detach-run", *secrets, file]


def submit_job(target: Target, job: Job, text: str, *, yes: bool = False) -> int:
    """The exit code of the cluster's command."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{job.name}.{'sbatch' if target == 'slurm' else 'yaml'}"
        file.write_text(text, encoding="utf-8")
        command = submit_command(target, job, str(file), yes=yes)
        print(f"$ {shlex.join(command)}", flush=True)
        return subprocess.run(command, check=False).returncode
