"""A recipe on a cluster: the cluster in one YAML file for Slurm, SkyPilot and Kubernetes, with flags laid over it, and
what the three kinds of job have in common, checked before one is written."""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, cast

from pydantic import Field, PositiveFloat, PositiveInt, PrivateAttr

from hf_efficient.errors import Problem, RecipeError, SetupError
from hf_efficient.launch.output import local_inputs
from hf_efficient.recipe.files import file_tree, set_at
from hf_efficient.recipe.load import change_recipe, dump_yaml, put_nested, whole_values
from hf_efficient.recipe.rules.distributed import with_accumulation
from hf_efficient.recipe.rules.training import only_on_the_command_line
from hf_efficient.recipe.schema import Origin, Recipe, Section
from hf_efficient.recipe.schema_check import Finding, check_schema, to_problems
from hf_efficient.recipe.tree import Node, any_of, dotted, found, nearest
from hf_efficient.text import counted
from hf_efficient.version import __version__

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


def gpus_of(text: int | str | None) -> Gpus | None:
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
        return str(self._origins.get(key) or self._file or "the cluster")


FLAGS: Mapping[str, str] = {
    "--num-gpus": "gpus",
    "--time": "time_limit",
    "--shared": "shared",
    "--image": "image",
    "--partition": "slurm.partition",
    "--account": "slurm.account",
    "--infra": "skypilot.infra",
    "--namespace": "kubernetes.namespace",
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
        value = Node(f"{kind}:{text}" if is_of_kind else text, Origin("command line", text=written))
        with suppress(RecipeError):  # a section that is no mapping is left for the checks to report
            tree = set_at(tree, FLAGS[flag].split("."), value)
    findings = check_schema(tree, root=Cluster, kind="a cluster's description")
    if findings := findings or [*_wrong_amounts(tree), *_wrong_names(tree)]:
        raise RecipeError(to_problems(tree, findings))
    cluster = Cluster.model_validate(tree.plain(), strict=True)
    cluster._origins = {dotted(path): node.origin for path, node in tree.leaves()}
    cluster._file = str(file or "")
    return cluster


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


def _wrong_names(tree: Node) -> Iterator[Finding]:
    for path, node in tree.leaves():
        if not isinstance(node.value, str):
            continue
        key = dotted(tuple(part for part in path if isinstance(part, str))) if path[0] != "env" else "env"
        words, form = _FORMS.get(key, ("", None))
        name = str(path[1]) if key == "env" else node.value
        if form is not None and not form.fullmatch(name):
            yield Finding(path, f"is {found(name)}, but must be {words}.")


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


def standalone_recipe(recipe: Recipe) -> str:
    """YAML that loads to the same recipe anywhere: a later change of a file changes no job. A job decides by its own
    switches, at each start, what becomes of an earlier run."""
    named = [key for key, origin in recipe.provenance.items() if origin.is_set or key in ("name", "output_dir")]
    values: dict[str, Any] = {}
    for key, value in whole_values(recipe.resolved(), named).items():
        if key != "existing_output":
            put_nested(values, key, value)
    return dump_yaml(values)


Target = Literal["slurm", "skypilot", "kubernetes"]
TARGETS: tuple[Target, ...] = ("slurm", "skypilot", "kubernetes")

_OTHER_NAMES: dict[str, Target] = {"sbatch": "slurm", "sky": "skypilot", "k8s": "kubernetes", "kubectl": "kubernetes"}
_LONGEST_NAME = 40  # Kubernetes adds ``-node-0-0`` and more for the pods of a job, and allows 63 characters


@dataclass(frozen=True)
class Job:
    name: str
    source: str  # the recipe as the user named it
    recipe: str  # its text, which stands alone
    output_dir: str  # as every machine sees it
    nodes: int
    processes: int  # on each machine
    gpus: Gpus | None  # of each machine
    seconds: int | None  # the time limit of a start
    switch: str  # for the first start: --resume, --overwrite or nothing
    overrides: tuple[str, ...]  # what the command line alone may say
    flags: tuple[str, ...]  # for every start: --keep-going, --debug
    directory: str  # the folder that the job was written in
    version: str
    cluster: Cluster


def target_of(name: str) -> Target:
    if name in TARGETS:
        return cast("Target", name)
    meant = _OTHER_NAMES.get(name.lower()) or nearest(name, TARGETS)
    remedy = f"Did you mean --on {meant}?" if meant else f"Write {any_of(TARGETS)}."
    raise SetupError(f"--on: {name} is not a known kind of cluster. {remedy}")


def job_of(
    target: Target, recipe: Recipe, cluster: Cluster, *, source: str, directory: str, switch: str, flags: Sequence[str]
) -> Job:
    gpus = gpus_of(cluster.gpus)
    # The current folder is that of Slurm's machines as well.
    folder = directory if target == "slurm" and not recipe.output_dir.startswith("~") else ""
    output = posixpath.normpath(posixpath.join(folder, recipe.output_dir))
    problems = [
        *_process_problems(recipe, cluster, gpus),
        *_storage_problems(target, recipe, cluster, output),
        *_unreachable_inputs(target, recipe, cluster, directory),
    ]
    if problems:
        raise RecipeError(problems)
    processes = recipe.distributed.processes
    if processes == "auto":
        processes = gpus.count if gpus is not None else 1
        recipe = change_recipe(recipe, {"distributed.processes": processes})
    recipe = with_accumulation(recipe, recipe.distributed.nodes * processes)
    return Job(
        name=_name(recipe.name),
        source=source,
        recipe=standalone_recipe(recipe),
        output_dir=output,
        nodes=recipe.distributed.nodes,
        processes=processes,
        gpus=gpus,
        seconds=seconds_of(cluster.time_limit or ""),
        switch=switch,
        overrides=only_on_the_command_line(recipe),
        flags=tuple(flags),
        directory=directory,
        version=__version__,
        cluster=cluster,
    )


def _name(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not plain[:1].isalpha():  # Kubernetes makes a service of it
        plain = f"run-{plain}"
    return plain[:_LONGEST_NAME].strip("-")


def _process_problems(recipe: Recipe, cluster: Cluster, gpus: Gpus | None) -> Iterator[Problem]:
    processes, key = recipe.distributed.processes, "distributed.processes"
    if processes == "auto":
        if gpus is not None or recipe.train.get("use_cpu"):
            return
        message = "is auto, one process per GPU, but the number of GPUs of a machine is not given."
        remedy = "Write --gpu H100 --num-gpus 8, or distributed.processes=N."
    elif gpus is None or processes == gpus.count:
        return
    elif processes > gpus.count:
        message = f"is {processes}, but {cluster.where('gpus')} gives each machine {counted(gpus.count, 'GPU')}."
        remedy = f"Write distributed.processes=auto or {gpus.count}, or more GPUs per machine."
    else:
        message = f"is {processes}, but {cluster.where('gpus')} pays for {counted(gpus.count, 'GPU')} on each machine."
        remedy = f"Write distributed.processes=auto, or --num-gpus {processes}."
    yield Problem(_where(recipe, key), key, message, remedy)


def _storage_problems(target: Target, recipe: Recipe, cluster: Cluster, output: str) -> Iterator[Problem]:
    shared = cluster.shared
    if shared is None and target != "slurm":
        message = "is missing: the run would be lost with its machines."
        remedy = "Give the path at which they mount shared storage (--shared /mnt/runs)."
        yield Problem(cluster.where(""), "shared", message, remedy)
    if shared is not None and not PurePosixPath(output).is_relative_to(posixpath.normpath(shared)):
        message = (
            f"is {recipe.output_dir}, which is not on the shared storage ({cluster.where('shared')}): other machines, "
            "and a later start on another one, would not see its checkpoints."
        )
        remedy = f"Write output_dir={posixpath.join(shared, posixpath.basename(output))}."
        yield Problem(_where(recipe, "output_dir"), "output_dir", message, remedy)


def _unreachable_inputs(target: Target, recipe: Recipe, cluster: Cluster, directory: str) -> Iterator[Problem]:
    """Local files that the machines do not have: SkyPilot copies the current folder, a pod sees the shared storage."""
    for key, text in local_inputs(recipe) if target != "slurm" else ():
        path = Path(directory, Path(text).expanduser())
        if not path.exists() or (cluster.shared is not None and Path(text).is_relative_to(cluster.shared)):
            continue
        copied = target == "skypilot" and not Path(text).is_absolute() and path.resolve().is_relative_to(directory)
        if not copied and key != "data.cache_dir":
            others = "SkyPilot copies the current folder alone" if target == "skypilot" else "no pod sees it"
            message = f"is {text}, which is on the disk of this machine; {others}."
            remedy = f"Copy it to {cluster.shared or 'the shared storage'}, and write the path that it has there."
            yield Problem(_where(recipe, key), key, message, remedy)


def _where(recipe: Recipe, key: str) -> str:
    return str(recipe.provenance.get(key) or recipe.path or recipe.name)
