"""A job as Kubeflow Trainer's TrainJob, and the TrainingRuntime that it runs in (Kubeflow Trainer 2.2 and newer).

The runtime is the job's own, because it alone can say what becomes of a job that fails: a TrainJob takes its restart
policy from there, and the ``torch-distributed`` runtime that Kubeflow installs has none.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from typing import Any

from hf_efficient.cluster.job import Job
from hf_efficient.cluster.node_script import node_script
from hf_efficient.errors import Problem, RecipeError
from hf_efficient.recipe.yaml_dump import dump_yaml

__all__ = ["kubernetes_job"]

_API = "trainer.kubeflow.org/v1alpha1"
_REMEDY = "Name an image that holds it, or activate its environment: activate, in the cluster's file."
_BAD_INPUT = 2
"""Exit code of hf-efficient for what another start would not mend."""

# The launcher would read PET_* as options of its own.
_START = """\
set -euo pipefail
node_rank=$PET_NODE_RANK
{meeting}unset "${{!PET_@}}"
mkdir -p {shared}
cd {shared}
"""
_MEETING = "main_address=$PET_MASTER_ADDR:{port}\n"


def kubernetes_job(job: Job) -> str:
    """Two documents of YAML: the TrainingRuntime and the TrainJob.

    Raises:
        RecipeError: what Kubernetes needs is missing.
    """
    problems = list(_problems(job))
    if problems:
        raise RecipeError(problems)
    written = f"{' '.join(job.source.split())}, written by hf_efficient {job.version}"
    documents = [dump_yaml(_filled(one), blocks=True) for one in (_runtime(job), _train_job(job))]
    return f"# {written}. Submit it by: kubectl create -f FILE\n" + "---\n".join(documents)


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
                "resourcesPerNode": _resources(job),
                "env": [
                    # Of the JobSet that Kubeflow Trainer makes: the same for all pods, another one after a restart.
                    _from_label("job", "jobset.sigs.k8s.io/jobset-uid"),
                    _from_label("attempt", "jobset.sigs.k8s.io/restart-attempt"),
                    *({"name": name, "value": value} for name, value in cluster.env.items()),
                ],
                "command": ["bash", "-c", _script(job)],
            },
        },
    }


def _runtime(job: Job) -> dict[str, Any]:
    restarts = {"action": "FailJobSet", "name": "badInput", "onJobFailureReasons": ["PodFailurePolicy"]}
    bad_input = {"containerName": "node", "operator": "In", "values": [_BAD_INPUT]}
    return {
        "apiVersion": _API,
        "kind": "TrainingRuntime",
        "metadata": _metadata(job, {"trainer.kubeflow.org/framework": "torch"}),
        "spec": {
            "mlPolicy": {"numNodes": job.nodes, "torch": {}},
            "template": {
                "spec": {
                    # All pods start again where one failed; bad input fails the job at once.
                    "failurePolicy": {"maxRestarts": job.cluster.restarts, "rules": [restarts]},
                    "replicatedJobs": [
                        {
                            "name": "node",
                            "template": {
                                "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
                                "spec": {
                                    "backoffLimit": 0,
                                    "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": bad_input}]},
                                    "template": {"spec": _pod(job)},
                                },
                            },
                        }
                    ],
                }
            },
        },
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


def _resources(job: Job) -> dict[str, Any]:
    cluster = job.cluster
    amounts: dict[str, Any] = {
        "cpu": str(cluster.cpus) if cluster.cpus is not None else None,
        "memory": f"{math.ceil(cluster.memory_gb * 1000)}M" if cluster.memory_gb is not None else None,
    }
    gpus = {cluster.kubernetes.gpu_resource: str(job.gpus.count)} if job.gpus is not None else {}
    return {"requests": {**amounts, **gpus}, "limits": {"memory": amounts["memory"], **gpus}}


def _script(job: Job) -> str:
    meeting = _MEETING.format(port=job.cluster.port or "$PET_MASTER_PORT") if job.nodes > 1 else ""
    return _START.format(meeting=meeting, shared=shlex.quote(str(job.cluster.shared))) + node_script(
        job, remedy=_REMEDY
    )


def _metadata(job: Job, labels: dict[str, str] | None) -> dict[str, Any]:
    return {"name": job.name, "namespace": job.cluster.kubernetes.namespace, "labels": labels}


def _from_label(name: str, label: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}}


def _filled(value: Any) -> Any:
    """Without what nobody gave: None, and what is empty without it. ``torch: {}`` and the like stay as written."""
    if isinstance(value, dict):
        kept = {key: _filled(below) for key, below in value.items()}
        return {key: below for key, below in kept.items() if below is not None and below != []} or (
            {} if not value else None
        )
    return [_filled(one) for one in value] if isinstance(value, list) else value


def _problems(job: Job) -> Iterator[Problem]:
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
