"""What a job says to Slurm, SkyPilot and Kubernetes. ``test_jobs_real_slurm`` runs the batch script."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from hf_efficient.errors import RecipeError
from hf_efficient.jobs.job import load_cluster
from hf_efficient.jobs.targets import TEXTS, kubernetes_job, sbatch_script, skypilot_task, srun_command
from tests.jobs.jobs import WHOLE_CLUSTER, cluster_of, job_for


def options(*overrides, directory="/home/me/project", **keys):
    script = sbatch_script(job_for("slurm", cluster_of(**keys), *overrides, directory=directory))
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    return " ".join(one.removeprefix("#SBATCH ") for one in script.splitlines() if one.startswith("#SBATCH"))


def test_machines_of_the_jobs_own():
    assert options("distributed.nodes=2", "distributed.processes=auto", gpus="h100:8", time_limit="36h") == (
        "--job-name=quickstart-lora --nodes=2 --ntasks-per-node=1 --gres=gpu:h100:8 --exclusive --mem=0 "
        "--time=1-12:00:00 --signal=B:USR1@120 --requeue --open-mode=append --chdir=/home/me/project --output=%x-%j.log"
    )


def test_parts_of_machines_and_all_that_a_site_may_ask():
    slurm = {"partition": "gpu", "account": "a", "qos": "high", "constraint": "h100&ib", "reservation": "r"}
    keys = {"gpus": 1, "cpus": 16, "memory_gb": 64.5, "restarts": 0, "grace_seconds": 300}
    keys["slurm"] = {**slurm, "sbatch_options": ["--mail-type=END"]}
    assert options(**keys, directory="/home/me/a b") == (
        "--job-name=quickstart-lora --nodes=1 --ntasks-per-node=1 --gres=gpu:1 --cpus-per-task=16 --mem=64500M "
        "--partition=gpu --account=a --qos=high '--constraint=h100&ib' --reservation=r --signal=B:USR1@300 "
        "--no-requeue --open-mode=append '--chdir=/home/me/a b' --output=%x-%j.log --mail-type=END"
    )


def test_srun_and_the_environment():
    keys = {"env": {"A": "it's $B"}, "slurm": {"srun_options": ["--container-image=a b"]}}
    script = sbatch_script(job_for("slurm", cluster_of(**keys)))
    assert "export A='it'\"'\"'s $B'\n" in script
    assert "--kill-on-bad-exit=1 --cpu-bind=none '--container-image=a b' \\\n" in script
    assert "main_address" not in script


def test_one_process_as_a_job_that_is_waited_for():
    keys = {"gpus": "h100:8", "time_limit": "2h", "env": {"A": "b c"}, "activate": "source venv/bin/activate"}
    slurm = {"partition": "gpu", "sbatch_options": ["--mail-type=END"], "srun_options": ["--container-image=a"]}
    command = srun_command(cluster_of(**keys, slurm=slurm), "tuning", ["python", "a b"])
    assert command[: command.index("bash")] == [
        *("setpriv", "--pdeathsig", "TERM", "srun", "--job-name=tuning", "--nodes=1", "--ntasks=1", "--quiet"),
        *("--cpu-bind=none", "--gres=gpu:h100:1", "--exclusive", "--mem=0", "--partition=gpu", "--time=02:00:00"),
        "--container-image=a",
    ]
    assert command[-1] == "export A='b c'\nsource venv/bin/activate\nexec python 'a b'"


def test_one_file_is_for_all_three(tmp_path):
    page = (Path(__file__).parents[2] / "docs/clusters.md").read_text(encoding="utf-8")
    (file := tmp_path / "cluster.yaml").write_text(re.search(r"```yaml\n(# cluster\.yaml.*?)```", page, re.S)[1])
    for target, text in TEXTS.items():
        assert text(job_for(target, load_cluster(file, {}), OUTPUT, "distributed.processes=auto"))


@pytest.mark.parametrize(("target", "flag", "said"), [
    ("slurm", "--image", "Slurm runs containers by a plugin"), ("skypilot", "--time", "SkyPilot ends no job by"),
])  # fmt: skip
def test_a_flag_that_the_cluster_does_not_take_is_refused(tmp_path, target, flag, said):
    (file := tmp_path / "c.yaml").write_text("shared: /mnt/runs\nskypilot: {volume: runs, setup: x}\n")
    with pytest.raises(RecipeError, match=rf"^command line: {flag} 2h: \w+: is given, but {said}"):
        TEXTS[target](job_for(target, load_cluster(file, {flag: "2h"}), OUTPUT))


OUTPUT = "output_dir=/mnt/runs/a"
SMALL = {"shared": "/mnt/runs", "skypilot": {"volume": "runs", "setup": "pip install -e ."}}


def task_of(cluster, *overrides):
    return yaml.safe_load(skypilot_task(job_for("skypilot", cluster_of(**cluster), OUTPUT, *overrides)))


def test_a_skypilot_task():
    task = task_of(WHOLE_CLUSTER, "distributed.nodes=4", "distributed.processes=auto")
    run = task.pop("run")
    assert 'main_address=$(echo "$SKYPILOT_NODE_IPS" | head -n 1):12345\n' in run
    assert task.pop("resources") == {
        "infra": "aws/us-east-1", "accelerators": "H100:8", "cpus": "96+", "memory": "500.5+", "use_spot": True,
        "disk_size": 512, "image_id": "docker:registry.example/train:1",
        "job_recovery": {"max_restarts_on_errors": 5},
    }  # fmt: skip
    assert task == {
        "name": "quickstart-lora", "workdir": ".", "num_nodes": 4, "envs": WHOLE_CLUSTER["env"],
        "secrets": {"HF_TOKEN": None}, "setup": "pip install -e .\necho done\n",
        "file_mounts": {"/mnt/runs": {"source": "s3://my-runs", "mode": "MOUNT_CACHED"}},
    }  # fmt: skip


def test_one_machine_without_gpus_and_a_volume():
    task = task_of(SMALL)
    assert set(task) == {"name", "workdir", "num_nodes", "resources", "volumes", "setup", "run"}
    assert task["volumes"] == {"/mnt/runs": "runs"}
    assert "main_address" not in task["run"]


SMALL_POD = {"shared": "/mnt/runs", "image": "train:1", "kubernetes": {"volume_claim": "runs"}}


def documents(cluster, *overrides):
    text = kubernetes_job(job_for("kubernetes", cluster_of(**cluster), OUTPUT, *overrides))
    runtime, job = yaml.safe_load_all(text)
    return runtime, job


def test_a_train_job_and_its_runtime():
    cluster = {**WHOLE_CLUSTER, "time_limit": "12h"}
    runtime, job = documents(cluster, "distributed.nodes=4", "distributed.processes=auto")

    trainer = job["spec"].pop("trainer")
    shell, option, script = trainer.pop("command")
    assert (shell, option) == ("bash", "-c")
    assert "main_address=$PET_MASTER_ADDR:12345\n" in script
    labels = {"kueue.x-k8s.io/queue-name": "research"}
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": "quickstart-lora"}
    assert job == {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "quickstart-lora", "namespace": "team", "labels": labels},
        "spec": {"runtimeRef": reference, "activeDeadlineSeconds": 43200},
    }
    label = "metadata.labels['jobset.sigs.k8s.io/{}']"
    asked = {"memory": "500500M", "nvidia.com/gpu": "8"}
    assert trainer == {
        "image": "registry.example/train:1",
        "numNodes": 4,
        "numProcPerNode": 8,
        "resourcesPerNode": {"requests": {"cpu": "96", **asked}, "limits": asked},
        "env": [
            {"name": "job", "valueFrom": {"fieldRef": {"fieldPath": label.format("jobset-uid")}}},
            {"name": "attempt", "valueFrom": {"fieldRef": {"fieldPath": label.format("restart-attempt")}}},
            *({"name": name, "value": value} for name, value in WHOLE_CLUSTER["env"].items()),
        ],
    }

    template = runtime["spec"]["template"]["spec"]
    assert template["failurePolicy"]["maxRestarts"] == 5
    (replicated,) = template["replicatedJobs"]
    assert (replicated["name"], replicated["template"]["spec"]["backoffLimit"]) == ("node", 0)
    pod = replicated["template"]["spec"]["template"]["spec"]
    assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"]) == ("Never", 90)
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert pod["volumes"][0] == {"name": "shared", "persistentVolumeClaim": {"claimName": "runs"}}
    assert pod["containers"][0]["volumeMounts"][0] == {"name": "shared", "mountPath": "/mnt/runs"}
    assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "hf-token"}}]


def test_one_pod_without_gpus_says_nothing_that_nobody_gave():
    runtime, job = documents(SMALL_POD)
    assert set(job["spec"]) == {"runtimeRef", "trainer"}
    assert set(job["spec"]["trainer"]) == {"image", "numNodes", "numProcPerNode", "env", "command"}
    assert job["metadata"] == {"name": "quickstart-lora"}
    assert runtime["spec"]["mlPolicy"] == {"numNodes": 1, "torch": {}}
    pod = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert set(pod) == {"restartPolicy", "terminationGracePeriodSeconds", "containers", "volumes"}
    assert "main_address" not in job["spec"]["trainer"]["command"][2]


SKYPILOT_NEEDS = (
    "gpus: is 1, but SkyPilot needs their type. Write --gpu H100 --num-gpus 1, or gpus: H100:1.",
    "skypilot.bucket: is missing, and no volume is given: one of the two is mounted at /mnt/runs. Write bucket: "
    "s3://NAME.",
    "skypilot.setup: is missing: SkyPilot's machines start without hf_efficient. Write the lines that install it, "
    "`pip install -e '.[recipes,quantization]'` in a clone for instance, or an image that holds it.",
)
KUBERNETES_NEEDS = (
    "image: is missing: a pod runs a container. Name one that holds hf_efficient (--image NAME).",
    "kubernetes.volume_claim: is missing: nothing else is mounted at /mnt/runs. Write the name of a "
    "PersistentVolumeClaim that many pods may write to (ReadWriteMany).",
    "gpus: names H100, but Kubernetes chooses machines by their labels. Write gpus: 2, and "
    "kubernetes.node_selector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}, for instance.",
)
BOTH = {"bucket": "s3://a", "volume": "b", "setup": "x"}
ONE_OF_TWO = "skypilot.bucket: and a volume are both given: one of the two is mounted at /mnt/runs. Write bucket: s3://"


@pytest.mark.parametrize(
    ("made", "cluster", "needs"),
    [
        (task_of, {"gpus": 1, "time_limit": "2h"}, SKYPILOT_NEEDS),
        (task_of, {"skypilot": BOTH}, [f"{ONE_OF_TWO}NAME."]),
        (documents, {"gpus": "H100:2"}, KUBERNETES_NEEDS),
    ],
)
def test_what_skypilot_and_kubernetes_need(made, cluster, needs):
    with pytest.raises(RecipeError) as error:
        made({"shared": "/mnt/runs", **cluster}, f"distributed.processes={2 if made is documents else 1}")
    assert [str(problem) for problem in error.value.problems] == [f"the cluster: {one}" for one in needs]
