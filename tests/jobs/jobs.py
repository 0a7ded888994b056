"""Jobs of a shipped recipe, and clusters written down in a line."""

from typing import Any

from hf_efficient.jobs.job import Cluster, Job, Target, job_of
from hf_efficient.recipe.load import load_recipe

WHOLE_CLUSTER: dict[str, Any] = {
    "shared": "/mnt/runs", "gpus": "H100:8", "cpus": 96, "memory_gb": 500.5, "restarts": 5, "grace_seconds": 90,
    "image": "registry.example/train:1", "activate": "source /mnt/venv/bin/activate", "port": 12345,
    "env": {"NCCL_DEBUG": "INFO", "GREETING": 'it\'s "1e3" $HOME', "NUMBER": "1e3"},
    "skypilot": {
        "infra": "aws/us-east-1", "spot": True, "bucket": "s3://my-runs", "disk_gb": 512,
        "setup": "pip install -e .\necho done", "secrets": ["HF_TOKEN"],
    },
    "kubernetes": {
        "namespace": "team", "volume_claim": "runs", "service_account": "trainer", "queue": "research",
        "image_pull_secrets": ["registry"], "secrets": ["hf-token"],
        "node_selector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    },
}  # fmt: skip


def cluster_of(**keys: Any) -> Cluster:
    """A cluster with these keys."""
    return Cluster.model_validate(keys, strict=True)


def job_for(
    target: Target,
    cluster: Cluster,
    *overrides: str,
    recipe: str = "quickstart/lora",
    switch: str = "",
    directory: str = "/home/me/project",
) -> Job:
    """A shipped recipe's job."""
    loaded = load_recipe(recipe, overrides)
    return job_of(target, loaded, cluster, source=recipe, directory=directory, switch=switch, flags=[])
