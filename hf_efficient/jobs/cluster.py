"""The description of a cluster: one YAML file for Slurm, SkyPilot and Kubernetes, and the flags laid over it."""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveFloat, PositiveInt, PrivateAttr

from hf_efficient.errors import RecipeError, SetupError
from hf_efficient.recipe.files import file_tree
from hf_efficient.recipe.schema import Origin, Section
from hf_efficient.recipe.schema_check import Finding, check_schema, to_problems
from hf_efficient.recipe.tree import Node, dotted, found

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WITH_UNIT = re.compile(r"(\d+)\s*([smhd])")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d{1,3}):(\d{2}):(\d{2})")
_GPUS = re.compile(r"(?:([A-Za-z0-9][A-Za-z0-9_.-]*):)?(\d+)")


@dataclass(frozen=True)
class Gpus:
    """GPUs of a machine; without a kind, whichever the cluster has."""

    kind: str | None
    count: int


def seconds_of(text: str) -> int | None:
    """``90m``, ``12h``, ``2d``, ``12:00:00``, ``1-12:00:00`` in seconds; None for anything else, and for no time."""
    if unit := _WITH_UNIT.fullmatch(text.strip()):
        return int(unit[1]) * _UNITS[unit[2]] or None
    if clock := _CLOCK.fullmatch(text.strip()):
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds or None
    return None


def clock_time(seconds: int) -> str:
    days, rest = divmod(seconds, 86400)
    text = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{text}" if days else text


def gpus_of(text: int | str) -> Gpus | None:
    """``8``, ``H100:8``; None for anything else, and for none."""
    read = _GPUS.fullmatch(str(text).strip())
    return Gpus(read[1], int(read[2])) if read and int(read[2]) else None


class SlurmSection(Section):
    """Options of sbatch and srun."""

    partition: str | None = Field(None, description="Partition; default: the cluster's own.")
    account: str | None = Field(None, description="Account that is charged.")
    qos: str | None = Field(None, description="Quality of service.")
    constraint: str | None = Field(None, description="Features that the machines must have.")
    reservation: str | None = Field(None, description="Reservation to run in.")
    sbatch_options: list[str] = Field([], description="Further options of sbatch, `--mail-type=END` for instance.")
    srun_options: list[str] = Field([], description="Further options of srun, `--container-image=...` for instance.")


class SkypilotSection(Section):
    """Fields of SkyPilot's task."""

    infra: str | None = Field(None, description="Cloud, region, zone: `aws/us-east-1`; default: the cheapest.")
    spot: bool = Field(False, description="Machines that may be taken away, at a lower price.")
    bucket: str | None = Field(None, description="Bucket (`s3://my-runs`) that every machine mounts at `shared`.")
    volume: str | None = Field(None, description="SkyPilot volume that every machine mounts at `shared`.")
    disk_gb: PositiveInt | None = Field(None, description="Size of each machine's own disk, in gigabytes.")
    setup: str | None = Field(None, description="Shell lines that install hf_efficient on a new machine.")
    secrets: list[str] = Field([], description="Environment variables of this shell that the machines get: HF_TOKEN.")


class KubernetesSection(Section):
    """Fields of Kubernetes and Kubeflow Trainer."""

    namespace: str | None = Field(None, description="Namespace; default: the current one of kubectl.")
    volume_claim: str | None = Field(None, description="PersistentVolumeClaim (ReadWriteMany) mounted at `shared`.")
    service_account: str | None = Field(None, description="Service account of the pods.")
    image_pull_secrets: list[str] = Field([], description="Secrets to pull the image with.")
    secrets: list[str] = Field([], description="Secrets that become environment variables: HF_TOKEN, for instance.")
    node_selector: dict[str, str] = Field({}, description="Labels of the machines: `nvidia.com/gpu.product: ...`.")
    tolerations: list[dict[str, Any]] = Field([], description="Taints that the pods tolerate, in Kubernetes' words.")
    gpu_resource: str = Field("nvidia.com/gpu", description="Resource that stands for a GPU.")
    queue: str | None = Field(None, description="Kueue's local queue.")


class Cluster(Section):
    """The machines, what they share, and what becomes of a job that ends before its run does."""

    shared: str | None = Field(None, description="Absolute path of the storage that all machines share.")
    gpus: PositiveInt | str | None = Field(None, description="GPUs of each machine: a count, or TYPE:COUNT (H100:8).")
    cpus: PositiveInt | None = Field(None, description="Processor cores of each machine; Slurm's default: all.")
    memory_gb: PositiveFloat | None = Field(None, description="Main memory of each machine, in gigabytes.")
    time_limit: str | None = Field(None, description="How long a start of the job may take: 90m, 12h, 2d, 1-12:00:00.")
    restarts: Annotated[int, Field(ge=0)] = Field(3, description="Starts after the first, from the last checkpoint.")
    grace_seconds: PositiveInt = Field(120, description="Seconds for a run to save, after the signal to end.")
    image: str | None = Field(None, description="Container image that holds hf_efficient (SkyPilot, Kubernetes).")
    activate: str | None = Field(None, description="Shell lines before the training: `source venv/bin/activate`.")
    env: dict[str, str] = Field({}, description="Environment variables of every machine.")
    port: Annotated[int, Field(ge=1024, le=65535)] | None = Field(None, description="Port of machine 0.")
    slurm: SlurmSection = Field(default_factory=SlurmSection)
    skypilot: SkypilotSection = Field(default_factory=SkypilotSection)
    kubernetes: KubernetesSection = Field(default_factory=KubernetesSection)

    _origins: Mapping[str, Origin] = PrivateAttr(default_factory=dict)
    _file: str = PrivateAttr("")

    def is_typed(self, key: str) -> bool:
        """Whether a flag gives it: what a file says is for all kinds of cluster, of which one may not take it."""
        origin = self._origins.get(key)
        return origin is not None and origin.source == "command line"

    def where(self, key: str) -> str:
        """Where a key was set, or would be: file and line, the flag, the file, or the description as such."""
        origin = self._origins.get(key)
        return str(origin) if origin is not None else self._file or "the cluster"


FLAGS: Mapping[str, tuple[str, ...]] = {
    "--num-gpus": ("gpus",),
    "--time": ("time_limit",),
    "--shared": ("shared",),
    "--image": ("image",),
    "--partition": ("slurm", "partition"),
    "--account": ("slurm", "account"),
    "--infra": ("skypilot", "infra"),
    "--namespace": ("kubernetes", "namespace"),
}
"""The flags of the command line that stand for a key, and the key."""


def load_cluster(file: Path | None, flags: Mapping[str, str | None]) -> Cluster:
    example = "gpus: H100:8"
    tree = Node({}, Origin("command line")) if file is None else file_tree(file, "a cluster's description", example)
    kind = flags.get("--gpu")
    if kind is not None and flags.get("--num-gpus") is None:
        raise SetupError("--gpu: names the kind of GPU, and their number is missing. Add --num-gpus N.")
    for flag, text in flags.items():
        if text is None or flag == "--gpu":
            continue
        is_of_kind = flag == "--num-gpus" and kind is not None
        written = f"--gpu {kind} {flag} {text}" if is_of_kind else f"{flag} {text}"
        _lay(tree, FLAGS[flag], f"{kind}:{text}" if is_of_kind else text, Origin("command line", text=written))
    findings = check_schema(tree, root=Cluster, kind="a cluster's description")
    if findings := findings or [*_wrong_amounts(tree), *_wrong_names(tree)]:
        raise RecipeError(to_problems(tree, findings))
    cluster = Cluster.model_validate(tree.plain(), strict=True)
    cluster._origins = {dotted(path): node.origin for path, node in tree.leaves()}
    cluster._file = str(file) if file is not None else ""
    return cluster


def _lay(tree: Node, path: tuple[str, ...], text: str, origin: Origin) -> None:
    """Put the value of a flag into the tree; a section that is no mapping is left for the checks to report."""
    node = tree
    for part in path[:-1]:
        node = node.value.setdefault(part, Node({}, origin))
        if not isinstance(node.value, dict):
            return
    node.value[path[-1]] = Node(text, origin)


_ENVIRONMENT = ("a name of letters, digits and _", re.compile(r"[A-Za-z_][A-Za-z0-9_]*"))
_LABEL = ("lower-case letters, digits and -, 63 at most", re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"))
_OBJECT = ("lower-case letters, digits, - and .", re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"))
_FORMS = {
    "kubernetes.namespace": _LABEL,
    "kubernetes.queue": _OBJECT,
    **{f"kubernetes.{name}": _OBJECT for name in ("volume_claim", "service_account", "image_pull_secrets", "secrets")},
    "skypilot.bucket": ("a bucket's address, s3://NAME", re.compile(r"[a-z0-9]+://[^\s/]+\S*")),
    "skypilot.secrets": _ENVIRONMENT,
    "env": _ENVIRONMENT,
}
"""What a name must be, in words and as a pattern: the cluster itself refuses others after minutes, or in the queue."""
_OF_SEVERAL_LINES = ("activate", "skypilot.setup", "env")


def _wrong_names(tree: Node) -> Iterator[Finding]:
    for path, node in tree.leaves():
        if not isinstance(node.value, str):
            continue
        key = dotted(tuple(part for part in path if isinstance(part, str))) if path[0] != "env" else "env"
        words, form = _FORMS.get(key, ("", None))
        name = str(path[1]) if key == "env" else node.value
        if form is not None and not form.fullmatch(name):
            yield Finding(path, f"is {found(name)}, but must be {words}.")
        elif key not in _OF_SEVERAL_LINES and len(node.value.splitlines()) > 1:
            yield Finding(path, "holds more than one line.", "Write one line.")


def _wrong_amounts(tree: Node) -> Iterator[Finding]:
    given: dict[str, Any] = {key: node.value for key, node in tree.value.items()}
    checks: dict[str, tuple[Callable[[Any], Any], str, str]] = {
        "gpus": (gpus_of, "a count of at least 1, or TYPE:COUNT", "Write, for instance, H100:8."),
        "time_limit": (seconds_of, "a time: 90m, 12h, 2d, 12:00:00 or 1-12:00:00", "Write, for instance, 12h."),
        "shared": (posixpath.isabs, "an absolute path", "Write the path at which every machine sees the storage."),
    }
    for key, (reads, words, remedy) in checks.items():
        if given.get(key) is not None and not reads(given[key]):
            yield Finding((key,), f"is {found(given[key])}, but must be {words}.", remedy)
