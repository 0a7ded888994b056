"""The task of SkyPilot: valid by its published schema, and what it says."""

from __future__ import annotations

import copy

import pytest
import yaml
from tests.cluster.jobs import WHOLE_CLUSTER, cluster_of, job_for
from tests.cluster.schema_checks import skypilot_faults

from hf_efficient.errors import RecipeError
from hf_efficient.jobs.targets import skypilot_task

OUTPUT = "output_dir=/mnt/runs/a"
SMALL = {"shared": "/mnt/runs", "skypilot": {"volume": "runs", "setup": "pip install -e ."}}


def task_of(cluster, *overrides):
    return yaml.safe_load(skypilot_task(job_for("skypilot", cluster_of(**cluster), OUTPUT, *overrides)))


def told(cluster):
    with pytest.raises(RecipeError) as error:
        task_of(cluster)
    return [str(problem) for problem in error.value.problems]


def test_all_that_a_cluster_may_say():
    task = task_of(WHOLE_CLUSTER, "distributed.nodes=4", "distributed.processes=auto")
    assert skypilot_faults(task) == []
    run = task.pop("run")
    assert 'main_address=$(echo "$SKYPILOT_NODE_IPS" | head -n 1):12345\n' in run
    assert task == {
        "name": "quickstart-lora",
        "workdir": ".",
        "num_nodes": 4,
        "resources": {
            "infra": "aws/us-east-1",
            "accelerators": "H100:8",
            "cpus": "96+",
            "memory": "500.5+",
            "use_spot": True,
            "disk_size": 512,
            "image_id": "docker:registry.example/train:1",
            "job_recovery": {"max_restarts_on_errors": 5},
        },
        "envs": {"NCCL_DEBUG": "INFO", "GREETING": 'it\'s "1e3" $HOME', "NUMBER": "1e3"},
        "secrets": {"HF_TOKEN": None},
        "file_mounts": {"/mnt/runs": {"source": "s3://my-runs", "mode": "MOUNT_CACHED"}},
        "setup": "pip install -e .\necho done\n",
    }


def test_one_machine_without_gpus_and_a_volume():
    task = task_of(SMALL)
    assert skypilot_faults(task) == []
    assert set(task) == {"name", "workdir", "num_nodes", "resources", "volumes", "setup", "run"}
    assert task["volumes"] == {"/mnt/runs": "runs"}
    assert "main_address" not in task["run"]


def test_people_can_read_it():
    text = skypilot_task(job_for("skypilot", cluster_of(**SMALL), OUTPUT))
    assert text.startswith("# quickstart/lora, written by hf_efficient ")
    assert "run: |\n  set -euo pipefail\n" in text


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("nodes",), 2),
        (("num_nodes",), "2"),
        (("resources", "accelerator"), "H100:8"),
        (("resources", "infra"), "nowhere/at/all"),
        (("resources", "use_spot"), "yes"),
        (("file_mounts", "/mnt/runs", "mode"), "MOUNT_SOMEHOW"),
        (("envs", "A"), 1),
    ],
)
def test_the_check_finds_what_is_wrong(where, value):
    task = copy.deepcopy(task_of(WHOLE_CLUSTER, "distributed.processes=8"))
    node = task
    for key in where[:-1]:
        node = node[key]
    node[where[-1]] = value
    assert skypilot_faults(task) != []


def test_what_skypilot_needs_and_cannot_do():
    assert told({"shared": "/mnt/runs", "gpus": 1, "time_limit": "2h"}) == [
        "the cluster: gpus: is 1, but SkyPilot has to know of which type. Write, for instance, H100:1.",
        "the cluster: skypilot.bucket: is missing, and no volume is given: one of the two is mounted at /mnt/runs. "
        "Write bucket: s3://NAME.",
        "the cluster: skypilot.setup: is missing: SkyPilot's machines start without hf_efficient. Write the lines that "
        "install it, `pip install -e .` in a clone for instance, or an image that holds it.",
        "the cluster: time_limit: is given, but SkyPilot ends no job by the clock. Write efficiency.budget.hours=N in "
        "the recipe: the run saves and stops.",
    ]
    (both,) = told({"shared": "/mnt/runs", "skypilot": {"bucket": "s3://a", "volume": "b", "setup": "x"}})
    assert "skypilot.bucket: and a volume are both given: one of the two" in both
