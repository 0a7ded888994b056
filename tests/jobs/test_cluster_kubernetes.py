"""The job of Kubernetes: valid by Kubeflow Trainer's published schemas, and what it says."""

from __future__ import annotations

import pytest
import yaml
from tests.cluster.jobs import WHOLE_CLUSTER, cluster_of, job_for
from tests.cluster.schema_checks import kubernetes_faults

from hf_efficient.errors import RecipeError
from hf_efficient.jobs.targets import kubernetes_job

OUTPUT = "output_dir=/mnt/runs/a"
SMALL = {"shared": "/mnt/runs", "image": "train:1", "kubernetes": {"volume_claim": "runs"}}


def documents(cluster, *overrides):
    text = kubernetes_job(job_for("kubernetes", cluster_of(**cluster), OUTPUT, *overrides))
    runtime, job = yaml.safe_load_all(text)
    return runtime, job


def test_all_that_a_cluster_may_say():
    cluster = {**WHOLE_CLUSTER, "time_limit": "12h"}
    runtime, job = documents(cluster, "distributed.nodes=4", "distributed.processes=auto")
    assert kubernetes_faults(runtime) == []
    assert kubernetes_faults(job) == []

    trainer = job["spec"].pop("trainer")
    shell, option, script = trainer.pop("command")
    assert (shell, option) == ("bash", "-c")
    assert "main_address=$PET_MASTER_ADDR:12345\n" in script
    assert job == {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {
            "name": "quickstart-lora",
            "namespace": "team",
            "labels": {"kueue.x-k8s.io/queue-name": "research"},
        },
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": "quickstart-lora"},
            "activeDeadlineSeconds": 43200,
        },
    }
    label = "metadata.labels['jobset.sigs.k8s.io/{}']"
    assert trainer == {
        "image": "registry.example/train:1",
        "numNodes": 4,
        "numProcPerNode": 8,
        "resourcesPerNode": {
            "requests": {"cpu": "96", "memory": "500500M", "nvidia.com/gpu": "8"},
            "limits": {"memory": "500500M", "nvidia.com/gpu": "8"},
        },
        "env": [
            {"name": "job", "valueFrom": {"fieldRef": {"fieldPath": label.format("jobset-uid")}}},
            {"name": "attempt", "valueFrom": {"fieldRef": {"fieldPath": label.format("restart-attempt")}}},
            {"name": "NCCL_DEBUG", "value": "INFO"},
            {"name": "GREETING", "value": 'it\'s "1e3" $HOME'},
            {"name": "NUMBER", "value": "1e3"},
        ],
    }

    template = runtime["spec"]["template"]["spec"]
    assert template["failurePolicy"]["maxRestarts"] == 5
    (replicated,) = template["replicatedJobs"]
    assert replicated["name"] == "node"
    pod = replicated["template"]["spec"]["template"]["spec"]
    assert replicated["template"]["spec"]["backoffLimit"] == 0
    assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"]) == ("Never", 90)
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert pod["volumes"][0] == {"name": "shared", "persistentVolumeClaim": {"claimName": "runs"}}
    assert pod["containers"][0]["volumeMounts"][0] == {"name": "shared", "mountPath": "/mnt/runs"}
    assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "hf-token"}}]


def test_bad_input_fails_the_job_at_once():
    runtime, _ = documents(SMALL)
    template = runtime["spec"]["template"]["spec"]
    (rule,) = template["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    (of_pods,) = template["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    assert of_pods == {"action": "FailJob", "onExitCodes": {"containerName": "node", "operator": "In", "values": [2]}}


def test_one_pod_without_gpus_says_nothing_that_nobody_gave():
    runtime, job = documents(SMALL)
    assert (kubernetes_faults(runtime), kubernetes_faults(job)) == ([], [])
    assert set(job["spec"]) == {"runtimeRef", "trainer"}
    assert set(job["spec"]["trainer"]) == {"image", "numNodes", "numProcPerNode", "env", "command"}
    assert job["metadata"] == {"name": "quickstart-lora"}
    assert runtime["spec"]["mlPolicy"] == {"numNodes": 1, "torch": {}}
    pod = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert set(pod) == {"restartPolicy", "terminationGracePeriodSeconds", "containers", "volumes"}
    assert "main_address" not in job["spec"]["trainer"]["command"][2]


@pytest.mark.parametrize(
    ("which", "where", "value"),
    [
        (1, ("spec", "trainer", "numnodes"), 2),
        (1, ("spec", "trainer", "numNodes"), "two"),
        (1, ("spec", "trainer", "command"), "bash"),
        (1, ("spec", "trainer", "resourcesPerNode", "request"), {}),
        (1, ("spec", "activeDeadlineSeconds"), 0),
        (1, ("spec", "podTemplateOverrides"), []),
        (0, ("spec", "template", "spec", "failurePolicy", "maxRestart"), 1),
        (0, ("spec", "template", "spec", "failurePolicy", "rules", 0, "action"), "Fail"),
        (0, ("spec", "mlPolicy", "torch", "nodes"), 1),
    ],
)
def test_the_check_finds_what_is_wrong(which, where, value):
    document = documents(WHOLE_CLUSTER, "distributed.processes=8")[which]
    node = document
    for key in where[:-1]:
        node = node[key]
    node[where[-1]] = value
    assert kubernetes_faults(document) != []


def test_what_kubernetes_needs():
    with pytest.raises(RecipeError) as error:
        documents({"shared": "/mnt/runs", "gpus": "H100:2"}, "distributed.processes=2")
    assert [str(problem) for problem in error.value.problems] == [
        "the cluster: image: is missing: a pod runs a container. Name one that holds hf_efficient (--image NAME).",
        "the cluster: kubernetes.volume_claim: is missing: nothing else is mounted at /mnt/runs. Write the name of a "
        "PersistentVolumeClaim that many pods may write to (ReadWriteMany).",
        "the cluster: gpus: names H100, but Kubernetes chooses machines by their labels. Write gpus: 2, and "
        "kubernetes.node_selector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}, for instance.",
    ]
