"""What a job asks of a cluster, as typed sections: one file may describe it for Slurm, SkyPilot and Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, PositiveFloat, PositiveInt, PrivateAttr

from hf_efficient.recipe.schema import Origin
from hf_efficient.recipe.section import Section

__all__ = ["Cluster", "KubernetesSection", "SkypilotSection", "SlurmSection"]


class SlurmSection(Section):
    """What sbatch and srun are told."""

    partition: str | None = Field(None, description="Partition; default: the cluster's own.")
    account: str | None = Field(None, description="Account that is charged.")
    qos: str | None = Field(None, description="Quality of service.")
    constraint: str | None = Field(None, description="Features that the machines must have.")
    reservation: str | None = Field(None, description="Reservation to run in.")
    sbatch_options: list[str] = Field(
        default_factory=list, description="Further options of sbatch, `--mail-type=END` for instance."
    )
    srun_options: list[str] = Field(
        default_factory=list, description="Further options of srun, `--container-image=...` for instance."
    )


class SkypilotSection(Section):
    """What SkyPilot is told."""

    infra: str | None = Field(None, description="Cloud, region, zone: `aws/us-east-1`; default: the cheapest.")
    spot: bool = Field(False, description="Machines that may be taken away, at a lower price.")
    bucket: str | None = Field(None, description="Bucket (`s3://my-runs`) that every machine mounts at `shared`.")
    volume: str | None = Field(None, description="SkyPilot volume that every machine mounts at `shared`.")
    disk_gb: PositiveInt | None = Field(None, description="Size of each machine's own disk, in gigabytes.")
    setup: str | None = Field(
        None, description="Shell lines that a new machine runs once; they install hf_efficient where no image holds it."
    )
    secrets: list[str] = Field(
        default_factory=list, description="Environment variables of this shell that the machines get: HF_TOKEN."
    )


class KubernetesSection(Section):
    """What Kubernetes and Kubeflow Trainer are told."""

    namespace: str | None = Field(None, description="Namespace; default: the current one of kubectl.")
    volume_claim: str | None = Field(
        None, description="PersistentVolumeClaim (ReadWriteMany) that every pod mounts at `shared`."
    )
    service_account: str | None = Field(None, description="Service account of the pods.")
    image_pull_secrets: list[str] = Field(default_factory=list, description="Secrets to pull the image with.")
    secrets: list[str] = Field(
        default_factory=list, description="Secrets whose keys become environment variables: one that holds HF_TOKEN."
    )
    node_selector: dict[str, str] = Field(
        default_factory=dict, description="Labels of the machines: `nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3`."
    )
    tolerations: list[dict[str, Any]] = Field(
        default_factory=list, description="Taints that the pods tolerate, as Kubernetes writes them."
    )
    gpu_resource: str = Field("nvidia.com/gpu", description="Resource that stands for a GPU.")
    queue: str | None = Field(None, description="Kueue's local queue.")


class Cluster(Section):
    """The machines, what they share, and what becomes of a job that ends before its run does."""

    shared: str | None = Field(
        None, description="Absolute path of the storage that all machines share; output_dir lies on it."
    )
    gpus: PositiveInt | str | None = Field(None, description="GPUs of each machine: a count, or TYPE:COUNT (H100:8).")
    cpus: PositiveInt | None = Field(
        None, description="Processor cores of each machine; Slurm's default: all, of machines of the job's own."
    )
    memory_gb: PositiveFloat | None = Field(None, description="Main memory of each machine, in gigabytes.")
    time_limit: str | None = Field(None, description="How long a start of the job may take: 90m, 12h, 2d, 1-12:00:00.")
    restarts: Annotated[int, Field(ge=0)] = Field(
        3, description="How often the cluster starts the job again, from the last checkpoint."
    )
    grace_seconds: PositiveInt = Field(
        120, description="Seconds between the signal to end and the end, for the run to leave its records."
    )
    image: str | None = Field(None, description="Container image that holds hf_efficient (SkyPilot, Kubernetes).")
    activate: str | None = Field(
        None, description="Shell lines that every machine runs before it trains: `source /shared/venv/bin/activate`."
    )
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables of every machine.")
    port: Annotated[int, Field(ge=1024, le=65535)] | None = Field(
        None, description="Port of the first machine where the others find it; default: by the job's number on Slurm."
    )
    slurm: SlurmSection = Field(default_factory=SlurmSection)
    skypilot: SkypilotSection = Field(default_factory=SkypilotSection)
    kubernetes: KubernetesSection = Field(default_factory=KubernetesSection)

    _origins: Mapping[str, Origin] = PrivateAttr(default_factory=dict)
    _file: str = PrivateAttr("")

    def where(self, key: str) -> str:
        """Where a key was set, or would be: file and line, the flag, the file, or the description as such."""
        origin = self._origins.get(key)
        return str(origin) if origin is not None else self._file or "the cluster"
